/* delay: emulates a line with a delay between two network namespaces, for kernels without netem.
 *
 *     delay NAMESPACE_A NAMESPACE_B ONE_WAY_MICROSECONDS
 *
 * Opens a TUN device "line" in each namespace and passes every IP packet from one device to the other after the delay,
 * in order. Each direction has one thread and holds at most QUEUE_BYTES; further packets are dropped, as in a router.
 * Prints READY when both devices exist. Ends when its parent ends, or by a signal. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum { QUEUE_BYTES = 32 << 20, LONGEST_PACKET = 65536, SLOTS = 1 << 16 };

struct packet {
    int64_t due_ns;
    uint32_t length;
    uint8_t *bytes;
};

struct direction {
    int from, to;
    int64_t delay_ns;
    struct packet slots[SLOTS]; /* a ring buffer; SLOTS is a power of two */
    unsigned first, count;
    size_t queued;
};

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static void deliver(struct direction *d) {
    for (; d->count && d->slots[d->first].due_ns <= now_ns(); d->count--) {
        struct packet *p = &d->slots[d->first];
        /* a full device drops the packet, and TCP sends the packet again */
        if (write(d->to, p->bytes, p->length) < 0) (void)0;
        d->queued -= p->length;
        free(p->bytes);
        d->first = (d->first + 1) % SLOTS;
    }
}

static void accept_packets(struct direction *d) {
    static __thread uint8_t buffer[LONGEST_PACKET];
    for (int burst = 0; burst < 64; burst++) {
        ssize_t length = read(d->from, buffer, sizeof buffer);
        if (length <= 0) return;
        if (d->count == SLOTS || d->queued + length > QUEUE_BYTES) continue;
        uint8_t *bytes = malloc(length);
        if (!bytes) continue;
        memcpy(bytes, buffer, length);
        d->slots[(d->first + d->count++) % SLOTS] = (struct packet){now_ns() + d->delay_ns, (uint32_t)length, bytes};
        d->queued += length;
    }
}

static void *run(void *argument) {
    struct direction *d = argument;
    prctl(PR_SET_TIMERSLACK, 1);
    for (;;) {
        deliver(d);
        struct pollfd in = {d->from, POLLIN, 0};
        struct timespec wait = {0, 0}, *until = NULL;
        if (d->count) {
            int64_t left = d->slots[d->first].due_ns - now_ns();
            if (left > 0) wait = (struct timespec){left / 1000000000, left % 1000000000};
            until = &wait;
        }
        if (ppoll(&in, 1, until, NULL) > 0) accept_packets(d);
    }
    return NULL;
}

static int device_in(const char *namespace) {
    char path[256];
    snprintf(path, sizeof path, "/run/netns/%s", namespace);
    int there = open(path, O_RDONLY | O_CLOEXEC);
    if (there < 0 || setns(there, CLONE_NEWNET) < 0) { perror(path); exit(1); }
    close(there);
    int device = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    struct ifreq request = {0};
    request.ifr_flags = IFF_TUN | IFF_NO_PI;
    strcpy(request.ifr_name, "line");
    if (device < 0 || ioctl(device, TUNSETIFF, &request) < 0) { perror("/dev/net/tun"); exit(1); }
    return device;
}

int main(int count, char **words) {
    if (count != 4) { fprintf(stderr, "usage: %s NAMESPACE_A NAMESPACE_B ONE_WAY_MICROSECONDS\n", words[0]); return 2; }
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    static struct direction there, back;
    int a = device_in(words[1]), b = device_in(words[2]);
    there.from = back.to = a;
    there.to = back.from = b;
    there.delay_ns = back.delay_ns = strtoll(words[3], NULL, 10) * 1000;
    /* Without this priority, a busy machine pauses the thread for 30 ms and packets are lost. An error is ignored. */
    struct sched_param first = {.sched_priority = 1};
    if (sched_setscheduler(0, SCHED_FIFO, &first) < 0) (void)0;
    pthread_t thread;
    if (pthread_create(&thread, NULL, run, &back)) { perror("thread"); return 1; }
    puts("READY");
    fflush(stdout);
    run(&there);
}
