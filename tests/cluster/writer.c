/*
 * The program of one rank of a simulation that only writes checkpoints, for tests of restarts.
 *
 *     writer DIR STEPS [--restart]
 *
 * writes DIR/step_SSSSSS.rank_R.bin for each step up to STEPS. All bytes of a file are a function of (run, step, rank).
 * With --restart, the rank reads its newest file, checks every byte, prints "rank R continues after step S", and
 * continues after this step. Without --restart, it prints "rank R begins".
 *
 * The number of the rank comes from Open MPI, PMIx or SLURM, in this order. Environment variables:
 *   WRITER_RUN    name of the run (default "run")
 *   WRITER_BYTES  bytes of a file (default 200000)
 *   WRITER_MS     time between two steps in milliseconds (default 1000)
 *   WRITER_HOLD   step after which the program waits until a signal ends it, unless this start is a restart
 *
 * Exit codes: 0 done, 1 wrong use or failed I/O, 9 a file does not have the bytes that it must have.
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *setting(const char *name, const char *otherwise) {
    const char *value = getenv(name);
    return value && *value ? value : otherwise;
}

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static uint64_t mix(uint64_t x) { /* the finalizer of splitmix64 */
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* Each word has 40 bits that look random and 24 bits that change slowly, so that a file can be compressed. */
static void fill(uint64_t *words, size_t count, const char *run, long step, int rank) {
    uint64_t seed = 0;
    for (const char *c = run; *c; c++) seed = mix(seed + (unsigned char)*c);
    seed = mix(seed + (uint64_t)step);
    seed = mix(seed + (uint64_t)rank);
    for (size_t i = 0; i < count; i++) words[i] = (mix(seed + i) >> 24) | ((uint64_t)(i / 1000) << 40);
}

static void path_of(char *path, size_t size, const char *dir, long step, int rank) {
    if (snprintf(path, size, "%s/step_%06ld.rank_%d.bin", dir, step, rank) >= (int)size) {
        fprintf(stderr, "the path is too long\n");
        exit(1);
    }
}

/* The newest step for which this rank has a file; 0 if there is no file. */
static long newest_step(const char *dir, int my_rank) {
    DIR *entries = opendir(dir);
    if (!entries) fail(dir);
    long newest = 0, step;
    int rank, end;
    for (struct dirent *entry; (entry = readdir(entries));) {
        end = 0;
        if (sscanf(entry->d_name, "step_%ld.rank_%d.bin%n", &step, &rank, &end) == 2 && end &&
            !entry->d_name[end] && rank == my_rank && step > newest)
            newest = step;
    }
    closedir(entries);
    return newest;
}

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: writer DIR STEPS [--restart]\n");
        return 1;
    }
    const char *dir = argv[1];
    long steps = atol(argv[2]), first = 1;
    int restart = argc > 3 && !strcmp(argv[3], "--restart");
    int rank = atoi(setting("OMPI_COMM_WORLD_RANK", setting("PMIX_RANK", setting("SLURM_PROCID", "0"))));
    const char *run = setting("WRITER_RUN", "run");
    size_t count = strtoul(setting("WRITER_BYTES", "200000"), NULL, 10) / sizeof(uint64_t);
    long hold = restart ? 0 : atol(setting("WRITER_HOLD", "0"));
    useconds_t pause_us = (useconds_t)atol(setting("WRITER_MS", "1000")) * 1000;
    uint64_t *words = calloc(count + 1, sizeof *words), *found = calloc(count + 1, sizeof *found);
    char path[4096];
    if (!words || !found) fail("memory");

    if (restart) {
        long newest = newest_step(dir, rank);
        path_of(path, sizeof path, dir, newest, rank);
        FILE *file = fopen(path, "rb");
        if (!file) fail(path);
        fill(words, count, run, newest, rank);
        /* Read one word more than the file must have, so that a longer file is detected. */
        size_t bytes = fread(found, 1, (count + 1) * sizeof *found, file);
        fclose(file);
        if (bytes != count * sizeof *found || memcmp(words, found, bytes)) {
            fprintf(stderr, "rank %d: WRONG BYTES in %s\n", rank, path);
            return 9;
        }
        printf("rank %d continues after step %ld\n", rank, newest);
        first = newest + 1;
    } else {
        printf("rank %d begins\n", rank);
    }
    fflush(stdout);

    for (long step = first; step <= steps; step++) {
        usleep(pause_us);
        fill(words, count, run, step, rank);
        path_of(path, sizeof path, dir, step, rank);
        FILE *file = fopen(path, "wb");
        if (!file || fwrite(words, sizeof *words, count, file) != count || fclose(file)) fail(path);
        while (step == hold) pause();
    }
    printf("rank %d has written step %ld\n", rank, steps);
    return 0;
}
