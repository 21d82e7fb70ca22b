//! Tests the page for a browser: who may see it, its JSON, and what a real browser shows.

use crate::json::{check, schemas};
use crate::support::*;
use mcr_test_support::Process;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(60);
const LAYOUT: &str = "ranks = 2\nquiet-ms = 20\ncheckpoint-quiet-ms = 40\nlayout = \"{checkpoint}.rank_{rank}.h5\"";
/// A name that a page without care would show as an image, and run as a script.
const HOSTILE: &str = "<img src=x onerror=document.title='owned'>";
/// An address without an aggregator.
const DEAD: &str = "127.0.0.1:1";

/// `mcr status --serve`, and the address that it printed.
struct Server {
    program: Process,
    url: String,
}

impl Server {
    fn start(aggregators: &[&str], store: Option<&Path>) -> Self {
        let mut command = mcr();
        command.args(["status", "--serve", "--interval", "1", "--aggregators", &aggregators.join(",")]);
        command.args(store.map(|store| format!("--store={}", store.display())));
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut program = Process::start(&mut command).expect("it starts");
        let mut lines = BufReader::new(program.0.stdout.take().expect("piped")).lines();
        let url = lines.next().expect("a line").expect("UTF-8");
        Self { program, url }
    }

    fn place(&self) -> Place {
        Place::of(&self.url)
    }
}

/// The parts of the address of a page.
struct Place {
    /// Address and port.
    at: String,
    token: String,
}

impl Place {
    fn of(url: &str) -> Self {
        let rest = url.strip_prefix("http://").expect("an address of HTTP");
        let (at, token) = rest.split_once("/?token=").expect("a token");
        assert_eq!(token.len(), 32, "{url}");
        Self { at: at.to_owned(), token: token.to_owned() }
    }

    /// The answer to a request with these lines: head and body.
    fn ask(&self, lines: &[&str]) -> (String, String) {
        let mut client = TcpStream::connect(&self.at).expect("connected");
        client.write_all(format!("{}\r\n\r\n", lines.join("\r\n")).as_bytes()).expect("written");
        let mut text = String::new();
        let _ = client.read_to_string(&mut text); // the connection may be reset after the answer
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        (head.to_owned(), body.to_owned())
    }

    /// The status of the answer to a request with these lines.
    fn status(&self, lines: &[&str]) -> u16 {
        let (head, _) = self.ask(lines);
        head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("no status: {head}"))
    }

    fn json(&self, path: &str) -> Value {
        let bearer = format!("Authorization: Bearer {}", self.token);
        let (head, body) = self.ask(&[&format!("GET {path} HTTP/1.1"), "Host: localhost", &bearer]);
        assert!(head.starts_with("HTTP/1.1 200 ") && head.contains("content-type: application/json"), "{head}");
        serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}"))
    }
}

/// An aggregator with a store, an agent with a hostile name, and the watched directory.
struct Site {
    dir: TempDir,
    _agent: Daemon,
    _aggregator: Daemon,
    address: String,
}

impl Site {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let (aggregator, address) = Daemon::aggregator(dir.path(), "a", &dir.path().join("store"), "");
        std::fs::create_dir(dir.path().join("run")).expect("made");
        let (config, state) = (dir.path().join("n.toml"), dir.path().join("n.state"));
        let watch = dir.path().join("run");
        let text = format!(
            "[cnc]\njob = \"wave\"\nnode = {HOSTILE:?}\nwatch = {watch:?}\nstate-file = {state:?}\naggregators = \
             [{address:?}]\n{LAYOUT}\n"
        );
        std::fs::write(&config, text).expect("written");
        let agent = Daemon::start(mcr().arg("cnc").arg("--config").arg(&config));
        (0..2).for_each(|rank| write_rank(&dir.path().join("run"), 1, rank, 900));
        wait_complete(&dir.path().join("store"), "sim.it_1");
        Self { dir, _agent: agent, _aggregator: aggregator, address }
    }

    fn store(&self) -> PathBuf {
        self.dir.path().join("store")
    }
}

#[test]
fn only_who_knows_the_address_sees_the_page_and_only_by_a_loopback_name() {
    let server = Server::start(&[DEAD], None);
    let place = server.place();
    assert!(place.at.starts_with("127.0.0.1:"), "{}", server.url);
    let (host, open) = ("Host: 127.0.0.1:80", format!("GET /?token={} HTTP/1.1", place.token));
    assert_eq!(place.status(&[&open, host]), 200);
    for (request, host, expected) in [
        ("GET / HTTP/1.1", host, 403),
        ("GET /?token= HTTP/1.1", host, 403),
        ("GET /?token=00000000000000000000000000000000 HTTP/1.1", host, 403),
        ("GET /status.json HTTP/1.1", host, 403),
        ("GET /list.json HTTP/1.1", host, 403),
        ("GET /elsewhere HTTP/1.1", host, 403),
        (&open, "Host: example.org", 403),
        (&open, "Host: 10.0.0.7", 403),
        (&open, "X: no host", 403),
        (&format!("GET /metrics?token={} HTTP/1.1", place.token), host, 404),
        (&format!("GET /list.json?token={} HTTP/1.1", place.token), host, 404),
        ("POST / HTTP/1.1", host, 405),
        (&format!("DELETE /?token={} HTTP/1.1", place.token), host, 405),
        (&open, &format!("X: {}", "x".repeat(20_000)), 431),
        ("nonsense", host, 400),
    ] {
        assert_eq!(place.status(&[request, host]), expected, "{request} {host}");
    }
    // Another site cannot frame the page, read its answers, or make it load anything.
    let (head, page) = place.ask(&[&open, host]);
    for part in ["default-src 'none'", "frame-ancestors 'none'", "cache-control: no-store", "nosniff", "no-referrer"] {
        assert!(head.contains(part), "{part}: {head}");
    }
    assert!(!head.contains("access-control-allow-origin") && !head.contains("set-cookie"), "{head}");
    assert!(page.starts_with("<!doctype html>") && !page.contains(&place.token), "{page}");
    let (head, body) = place.ask(&[&open.replace("GET", "HEAD"), host]);
    assert!(head.starts_with("HTTP/1.1 200 ") && body.is_empty(), "{head}");
    // Two servers have different tokens.
    let other = Server::start(&[DEAD], None);
    assert_eq!(other.place().status(&[&open, host]), 403);
    // Clients that say nothing do not block other clients.
    let silent: Vec<_> = (0..8).map(|_| TcpStream::connect(&place.at).expect("connected")).collect();
    assert_eq!(place.status(&[&open, host]), 200);
    drop(silent);
    assert!(server.program.end("TERM").expect("it ends").success());
    assert!(TcpStream::connect(&place.at).is_err());
}

#[test]
fn only_loopback_addresses_are_served() {
    for address in ["0.0.0.0:0", "[::]:0", "10.0.0.7:8080"] {
        let output = run(mcr().args(["status", "--aggregators", DEAD, "--serve", address]), 1);
        let said = String::from_utf8(output.stderr).expect("UTF-8");
        assert!(said.contains("is not a loopback address") && said.contains("ssh -L"), "{said}");
    }
    let taken = TcpListener::bind("127.0.0.1:0").expect("bound");
    let port = taken.local_addr().expect("an address").port().to_string();
    let output = run(mcr().args(["status", "--aggregators", DEAD, "--serve", &port]), 1);
    let said = String::from_utf8(output.stderr).expect("UTF-8");
    assert!(said.contains(&format!("listening on 127.0.0.1:{port}")) && said.contains("another port"), "{said}");
    assert!(said.trim_end().ends_with("give --serve another port, or none"), "the advice is at the end: {said}");
}

#[test]
fn the_json_of_the_page_is_the_json_of_the_commands() {
    let site = Site::new();
    let server = Server::start(&[&site.address, DEAD], Some(&site.store()));
    let place = server.place();
    let status = wait_for("both answers", PATIENCE, || {
        let status = place.json("/status.json");
        let is_there = status["aggregators"][0]["agents"][0]["job"] == "wave";
        (is_there && status["aggregators"][1]["error"] != "no answer yet").then_some(status)
    });
    check(&schemas()["status"], &status, "status").expect("the documented shape");
    assert_eq!(status["aggregators"][0]["agents"][0]["node"], HOSTILE, "{status}");
    assert!(status["aggregators"][1]["error"].is_string(), "{status}");
    let listed = place.json("/list.json");
    check(&schemas()["list"], &listed, "list").expect("the documented shape");
    assert_eq!(listed, run_json(mcr().args(["list", "--store"]).arg(site.store()), 0));
    // A store that cannot be read is an error with an advice.
    let server = Server::start(&[&site.address], Some(&site.dir.path().join("nowhere")));
    let place = server.place();
    let bearer = format!("Authorization: Bearer {}", place.token);
    let (head, body) = place.ask(&["GET /list.json HTTP/1.1", "Host: [::1]", &bearer]);
    assert!(head.starts_with("HTTP/1.1 500 "), "{head}");
    let error: Value = serde_json::from_str(&body).expect("JSON");
    check(&schemas()["error"], &error, "error").expect("the documented shape");
    assert!(error["error"]["advice"].as_str().is_some_and(|text| text.contains("Check the name")), "{error}");
    // With a store, the page is served even if no aggregator is known.
    let mut command = mcr();
    command.args(["status", "--serve", "--run-dir"]).arg(site.dir.path().join("nowhere")).current_dir(site.dir.path());
    command.arg("--store").arg(site.store()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut program = Process::start(&mut command).expect("it starts");
    let url = BufReader::new(program.0.stdout.take().expect("piped")).lines().next().expect("a line").expect("UTF-8");
    let status = Place::of(&url).json("/status.json");
    assert_eq!(status["aggregators"], serde_json::json!([]), "{status}");
    assert_eq!(Place::of(&url).json("/list.json"), listed);
}

#[test]
fn an_aggregator_serves_its_page_at_the_address_of_its_metrics_if_this_is_a_loopback_address() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = dir.path().join("store");
    let started = |name: &str, metrics: &str| {
        let more = format!("metrics = {metrics:?}");
        Daemon::aggregator(dir.path(), name, &store, &more)
    };
    let (aggregator, address) = started("a", "127.0.0.1:0");
    let line = aggregator.wait_for_log("the page is served");
    let place = Place::of(line.split('"').nth(1).expect("an address"));
    let host = "Host: localhost";
    assert_eq!(place.status(&["GET /metrics HTTP/1.1", host]), 200);
    assert_eq!(place.status(&["GET / HTTP/1.1", host]), 403);
    assert_eq!(place.status(&[&format!("GET /?token={} HTTP/1.1", place.token), host]), 200);
    let status = place.json("/status.json");
    check(&schemas()["status"], &status, "status").expect("the documented shape");
    let of_aggregator = &status["aggregators"][0];
    assert_eq!((&of_aggregator["aggregator"], &of_aggregator["error"]), (&address.into(), &Value::Null), "{status}");
    assert_eq!(place.json("/list.json")["checkpoints"], serde_json::json!([]));
    assert_eq!(aggregator.stop(), Some(0));
    // `mcr run` has an aggregator, too.
    std::fs::create_dir(dir.path().join("out")).expect("made");
    let mut command = mcr();
    command.args(["run", "--job", "wave", "--ranks", "1", "--metrics", "127.0.0.1:0", "--store"]).arg(&store);
    command.arg("--watch").arg(dir.path().join("out")).arg("--state").arg(dir.path().join("state"));
    let run_both = Daemon::start(&mut command);
    let line = run_both.wait_for_log("the page is served");
    let status = Place::of(line.split('"').nth(1).expect("an address")).json("/status.json");
    assert!(status["aggregators"][0]["agents"].is_array(), "{status}");
    assert_eq!(run_both.stop(), Some(0));
    let (aggregator, _) = started("b", "0.0.0.0:0");
    aggregator.wait_for_log("the page of the aggregator is not served");
    let at = crate::metrics::metrics_of(&aggregator).replace("0.0.0.0", "127.0.0.1");
    let place = Place { at, token: String::new() };
    assert_eq!(place.status(&["GET / HTTP/1.1", host]), 404);
    assert_eq!(place.status(&["GET /status.json HTTP/1.1", host]), 404);
    assert_eq!(place.status(&["GET /metrics HTTP/1.1", host]), 200);
}

/// The browser of this machine. Prints a line if there is none.
fn browser() -> Option<PathBuf> {
    let names = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"];
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found =
        std::env::split_paths(&path).flat_map(|dir| names.map(|name| dir.join(name))).find(|file| file.exists());
    if found.is_none() {
        eprintln!("SKIPPED: no browser is installed (package chromium), so nothing shows the page");
    }
    found
}

/// Runs a browser without a window on a page, for some milliseconds of the page's time. Returns the document that the
/// browser shows, without the scripts.
fn shown_by(browser: &Path, url: &str, ms: u32, more: &[String]) -> String {
    let profile = tempfile::tempdir().expect("a directory");
    let mut command = Command::new("timeout");
    command.arg("120").arg(browser).args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]);
    command.arg(format!("--user-data-dir={}", profile.path().display())).arg("--hide-scrollbars");
    command.arg(format!("--virtual-time-budget={ms}")).args(more).arg("--dump-dom").arg(url);
    let output = command.output().expect("timeout is installed");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(text.contains("</html>"), "{}\n{}", text, String::from_utf8_lossy(&output.stderr));
    text.split("<script").next().expect("a part before the script").to_owned()
}

#[test]
fn a_browser_shows_a_job_a_checkpoint_and_a_dead_aggregator_and_no_name_becomes_markup() {
    let Some(browser) = browser() else { return };
    let site = Site::new();
    write_rank(&site.dir.path().join("run"), 2, 0, 900); // rank 1 is missing
    let server = Server::start(&[&site.address, DEAD], Some(&site.store()));
    wait_for("a checkpoint in flight", PATIENCE, || {
        let status = server.place().json("/status.json");
        let groups = status["aggregators"][0]["checkpoints"].as_array()?;
        groups.iter().any(|group| group["phase"] == "gathering" && group["missing"][0] == 1).then_some(())
    });
    let shown = shown_by(&browser, &server.url, 8000, &[]);
    for part in [
        ">wave</td>",
        ">sim.it_1</td>",
        "wave: sim.it_1, complete\nwritten 20",
        "The aggregator 127.0.0.1:1 has not answered for ",
        "connection refused",
        "waiting for rank 1",
        ">gathering</td>",
        "2 aggregators, 1 without an answer; 1 job",
        ">current, ",
        "&lt;img src=x onerror=document.title='owned'&gt;",
        "<title>(1) mcr status</title>",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert!(!shown.contains("<img"), "{shown}");
    // The page of an address with a wrong token has no names.
    let wrong = shown_by(&browser, &format!("http://{}/?token=0", server.place().at), 2000, &[]);
    assert!(wrong.contains("the token is missing or wrong") && !wrong.contains("wave"), "{wrong}");
}

#[test]
fn a_browser_says_since_when_the_figures_are_old() {
    let Some(browser) = browser() else { return };
    let server = Server::start(&[DEAD], None);
    let place = server.place();
    let (_, page) = place.ask(&[&format!("GET /?token={} HTTP/1.1", place.token), "Host: localhost"]);
    let status = place.json("/status.json").to_string();
    // A server that gives the page and the first status, and then breaks every connection.
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let url = format!("http://{}/", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        let mut is_first = true;
        for client in listener.incoming() {
            let mut client = client.expect("accepted");
            let mut head = String::new();
            let _ = BufReader::new(&client).read_line(&mut head);
            let body = match head.split(' ').nth(1) {
                Some("/") => &page,
                Some("/status.json") if std::mem::take(&mut is_first) => &status,
                _ => continue,
            };
            let _ = write!(client, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: text/html\r\n\r\n{body}");
        }
    });
    let shown = shown_by(&browser, &url, 30_000, &[]);
    let line = "the process that serves this page does not answer; start it again";
    assert!(shown.contains("not current since ") && shown.contains(line), "{shown}");
    assert!(shown.contains(DEAD), "the last figures stay: {shown}");
}

/// An agent of a job with this number of ranks.
fn agent_of(dir: &Path, job: &str, ranks: u32, aggregators: &[String]) -> (Daemon, PathBuf) {
    let (watch, node) = (dir.join(job), format!("node-of-{job}"));
    std::fs::create_dir(&watch).expect("made");
    let (config, state) = (dir.join(format!("{job}.toml")), dir.join(format!("{job}.state")));
    let text = format!(
        "[cnc]\njob = {job:?}\nnode = {node:?}\nwatch = {watch:?}\nstate-file = {state:?}\naggregators = \
         {aggregators:?}\nranks = {ranks}\nquiet-ms = 20\ncheckpoint-quiet-ms = 40\n\
         layout = \"{{checkpoint}}.rank_{{rank}}.h5\"\n"
    );
    std::fs::write(&config, text).expect("written");
    (Daemon::start(mcr().arg("cnc").arg("--config").arg(&config)), watch)
}

/// Writes the file of a rank with noisy numbers, which are compressed less than smooth numbers.
fn write_noisy_rank(dir: &Path, step: u32, rank: u32, len: usize) {
    let mut noise = vec![0; len];
    std::fs::File::open("/dev/urandom").and_then(|mut from| from.read_exact(&mut noise)).expect("random bytes");
    let numbers = field(step, rank, len);
    let noisy: Vec<f64> =
        numbers.iter().zip(noise).map(|(number, noise)| number.round() + f64::from(noise) / 4096.0).collect();
    let file = hdf5::File::create(dir.join(format!("it_{step:04}.rank_{rank}.h5"))).expect("created");
    file.new_dataset_builder().with_data(&noisy).create("temperature").expect("written");
}

/// Makes the picture of the operator's page: two jobs, of which one waits for a rank and one is written to the store,
/// and an aggregator that was killed.
#[test]
fn a_picture_for_the_documents() {
    let Some(file) = std::env::var_os("MCR_PICTURE") else {
        eprintln!("SKIPPED: it makes a picture; MCR_PICTURE=FILE (make picture) runs it");
        return;
    };
    let browser = browser().expect("a browser");
    let dir = tempfile::tempdir().expect("a directory");
    let store = dir.path().join("store");
    let (first, a) = Daemon::aggregator(dir.path(), "a", &store, "profile = \"balanced\"\nsegment-mib = 1");
    let (second, b) = Daemon::aggregator(dir.path(), "b", &store, "");
    let (_wave, wave) = agent_of(dir.path(), "wave", 4, std::slice::from_ref(&a));
    let (_melt, melt) = agent_of(dir.path(), "melt", 2, std::slice::from_ref(&a));
    let server = Server::start(&[&a, &b], Some(&store));
    let of_wave = |step: u32, len: usize| (0..4).for_each(|rank| write_noisy_rank(&wave, step, rank, len));
    for step in 1..=12 {
        of_wave(step, 600_000 + 15_000 * step as usize);
        if step % 2 == 0 {
            (0..2).for_each(|rank| write_noisy_rank(&melt, step, rank, 150_000 + (step as usize % 5) * 30_000));
        }
        std::thread::sleep(Duration::from_secs(6)); // the time between two checkpoints of the simulation
    }
    wait_complete(&store, "it_0012");
    second.kill();
    write_noisy_rank(&melt, 14, 0, 200_000);
    of_wave(13, 1_500_000);
    wait_for("a running flush", PATIENCE, || {
        let status = server.place().json("/status.json");
        let groups = status["aggregators"][0]["checkpoints"].as_array()?;
        let has = |phase: &str| groups.iter().any(|group| group["phase"] == phase);
        let is_written = groups.iter().any(|group| group["phase"] == "flushing" && group["raw_bytes"] != 0);
        let is_dead = status["aggregators"][1]["error"].is_string();
        (is_written && has("gathering") && is_dead).then_some(())
    });
    let size = "--window-size=1120,1180".to_owned();
    let picture = dir.path().join("page.png");
    shown_by(&browser, &server.url, 2500, &[size, format!("--screenshot={}", picture.display())]);
    std::fs::copy(&picture, file).expect("copied");
    drop(first);
}
