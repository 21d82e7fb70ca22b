//! `mcr node check`: compares slurm.conf, Prolog and Epilog, the daemon's socket and the cluster's file with
//! the requirements of `mcr node`.

use super::slurm_conf::SlurmConf;
use crate::args::NodeCheckArgs;
use crate::exit::Exit;
use crate::output::{print, print_json, printable};
use crate::settings::{CLUSTER_FILE, Facts, Settings, cluster_path, gate_options};
use anyhow::Context;
use globset::Glob;
use mcr_node::client::SOCKET;
use mcr_node::client::ask;
use mcr_node::protocol::{Reply, Request};
use mcr_proto::tls::gate::GateTrust;
use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Paths where slurm.conf is searched, in this order.
const SLURM_CONF: [&str; 2] = ["/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf"];
/// Directory of the scripts of the package `mcrengine-node`.
const SHIPPED: &str = "/usr/share/mcr/slurm";
/// Default of the option `--wait` of `mcr job end`.
const WAIT_DEFAULT_SECONDS: u64 = 20;
/// Time that SLURM must permit in addition to `--wait`: for the end of `mcr job end`, and for other scripts.
const WAIT_MARGIN_SECONDS: u64 = 5;
/// Maximum time to wait for the daemon.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// Number of bytes at the beginning of a script that are searched.
const SCRIPT_MAX_BYTES: u64 = 1 << 20;
/// Commands that end processes.
const KILLERS: [&str; 5] = ["kill", "pkill", "killall", "skill", "slay"];
/// Values of PrologFlags that are or imply Alloc.
const ALLOC_FLAGS: [&str; 4] = ["alloc", "contain", "runinjob", "x11"];

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
enum Status {
    Ok,
    Warning,
    Wrong,
}

/// The result of one check.
#[derive(Clone, Debug, serde::Serialize)]
struct Checked {
    check: &'static str,
    status: Status,
    found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
}

impl Checked {
    fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, status: Status::Ok, found: found.into(), advice: None }
    }

    fn warning(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { check, status: Status::Warning, found: found.into(), advice: Some(advice.into()) }
    }

    fn wrong(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { status: Status::Wrong, ..Self::warning(check, found, advice) }
    }

    fn line(&self) -> String {
        let status = match self.status {
            Status::Ok => "ok",
            Status::Warning => "warning",
            Status::Wrong => "wrong",
        };
        let advice = self.advice.as_ref().map(|advice| format!("; {advice}")).unwrap_or_default();
        let text = format!("{status:<8} {}: {}{advice}", self.check, self.found);
        format!("{}\n", printable(&text))
    }
}

pub fn run(args: &NodeCheckArgs) -> anyhow::Result<ExitCode> {
    let mut all = match slurm_conf(args.slurm_conf.as_deref()) {
        Ok((file, conf)) => {
            let mut all = vec![Checked::ok("slurm.conf", file.display().to_string())];
            all.extend(of_slurm(&conf));
            all
        }
        Err(error) => {
            let advice = "name the file with --slurm-conf; nothing of SLURM was checked";
            vec![Checked::wrong("slurm.conf", format!("{error:#}"), advice)]
        }
    };
    all.push(socket(&args.node.run_dir.join(SOCKET)));
    all.push(cluster_file());
    all.extend(gates());
    if args.json {
        print_json(&serde_json::json!({ "checks": all }))?;
    } else {
        print(&all.iter().map(Checked::line).collect::<String>())?;
    }
    let is_good = all.iter().all(|checked| checked.status == Status::Ok);
    Ok(if is_good { Exit::Done } else { Exit::Failed }.into())
}

fn slurm_conf(named: Option<&Path>) -> anyhow::Result<(PathBuf, SlurmConf)> {
    let file = match named {
        Some(file) => file,
        None => SLURM_CONF
            .map(Path::new)
            .into_iter()
            .find(|file| file.exists())
            .with_context(|| format!("there is no {}", SLURM_CONF.join(" and no ")))?,
    };
    Ok((file.to_owned(), SlurmConf::load(file)?))
}

fn of_slurm(conf: &SlurmConf) -> Vec<Checked> {
    let mut all = vec![prolog_flags(conf.value("PrologFlags"))];
    let (prolog, _) = hook(conf, "Prolog", "begin", "prolog.d");
    let (epilog, found) = hook(conf, "Epilog", "end", "epilog.d");
    all.extend([prolog, epilog]);
    if let Some(found) = found {
        all.push(order(&found));
        all.push(timeout(conf, &found));
    }
    all
}

fn prolog_flags(flags: Option<&str>) -> Checked {
    let name = "PrologFlags";
    let has_alloc = flags.unwrap_or_default().split(',').any(|flag| {
        let flag = flag.trim().to_ascii_lowercase();
        ALLOC_FLAGS.contains(&flag.as_str())
    });
    if has_alloc {
        return Checked::ok(name, flags.unwrap_or_default());
    }
    let found = flags.map_or_else(|| "not set".to_owned(), |flags| format!("{flags} is without Alloc"));
    Checked::wrong(
        name,
        format!("{found}, so Prolog runs on the other nodes of a job only at its first srun"),
        "set PrologFlags=Alloc in slurm.conf",
    )
}

/// A file that SLURM runs as Prolog or Epilog.
struct Script {
    file: PathBuf,
    /// The words of each line. An error if the file cannot be read.
    text: Result<Vec<Vec<String>>, String>,
    is_executable: bool,
}

impl Script {
    fn of(file: PathBuf) -> Self {
        let read = || -> std::io::Result<String> {
            let mut text = Vec::new();
            std::fs::File::open(&file)?.take(SCRIPT_MAX_BYTES).read_to_end(&mut text)?;
            Ok(String::from_utf8_lossy(&text).into_owned())
        };
        let about = std::fs::metadata(&file);
        let text = match &about {
            Ok(about) if !about.is_file() => Err("it is not a regular file".into()),
            Ok(_) => read().map(|text| text.lines().map(words).collect()).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        let is_executable = about.is_ok_and(|about| about.permissions().mode() & 0o111 != 0);
        Self { file, text, is_executable }
    }

    fn lines(&self) -> &[Vec<String>] {
        self.text.as_deref().unwrap_or_default()
    }

    /// The index of the line that calls `mcr job WHAT`, and the words after the call.
    fn call(&self, what: &str) -> Option<(usize, &[String])> {
        self.lines().iter().enumerate().find_map(|(number, words)| {
            let at = words.windows(3).position(|w| command_of(&w[0]) == "mcr" && w[1] == "job" && w[2] == what)?;
            Some((number, &words[at + 3..]))
        })
    }

    /// The index of the first line that ends processes.
    fn kills(&self) -> Option<usize> {
        self.lines().iter().position(|words| words.iter().any(|word| KILLERS.contains(&command_of(word))))
    }
}

/// The words of a line of a script. A comment line has no words.
fn words(line: &str) -> Vec<String> {
    if line.trim_start().starts_with('#') {
        return Vec::new();
    }
    let is_separator = |c: char| c.is_whitespace() || ";|&(){}`\"'$=".contains(c);
    line.split(is_separator).filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

fn command_of(word: &str) -> &str {
    word.rsplit('/').next().unwrap_or(word)
}

/// The scripts of Epilog, in the order in which SLURM runs them, and the script that calls `mcr job end`.
struct Found {
    scripts: Vec<Script>,
    own: usize,
}

/// Checks that a script of Prolog or Epilog calls `mcr job WHAT`.
fn hook(conf: &SlurmConf, key: &'static str, what: &str, directory: &str) -> (Checked, Option<Found>) {
    let paths: Vec<&str> = conf.values(key).collect();
    let install = format!("copy {SHIPPED}/{directory}/*-mcr to /etc/slurm/{directory}");
    let set = format!("set {key}=/etc/slurm/{directory}/* in slurm.conf");
    if paths.is_empty() {
        return (Checked::wrong(key, "not set", format!("{install}, and {set}")), None);
    }
    let shown = paths.join(", ");
    let scripts: Result<Vec<_>, String> = paths.iter().map(|path| files_of(path)).collect();
    let scripts: Vec<Script> = match scripts {
        Ok(files) => files.into_iter().flatten().map(Script::of).collect(),
        Err(error) => return (Checked::warning(key, error, "check the scripts by hand"), None),
    };
    let Some(own) = scripts.iter().position(|script| script.call(what).is_some()) else {
        let unread = scripts.iter().find_map(|s| s.text.as_ref().err().map(|error| (&s.file, error)));
        let found = format!("no script of {shown} calls mcr job {what}");
        return match unread {
            Some((file, error)) => {
                let found = format!("{found}, and {} cannot be read ({error})", file.display());
                (Checked::wrong(key, found, format!("{install}; run this check as root")), None)
            }
            None => (Checked::wrong(key, found, install), None),
        };
    };
    let file = scripts[own].file.display();
    let checked = if scripts[own].is_executable {
        Checked::ok(key, format!("{file} calls mcr job {what}"))
    } else {
        Checked::wrong(key, format!("{file} is not executable"), format!("run chmod 755 {file}"))
    };
    (checked, Some(Found { scripts, own }))
}

/// The files of a path of slurm.conf, in the order in which SLURM runs them: in reverse order of their names.
fn files_of(path: &str) -> Result<Vec<PathBuf>, String> {
    let is_pattern = |text: &str| text.contains(['*', '?', '[']);
    if !is_pattern(path) {
        return Ok(vec![path.into()]);
    }
    let (directory, pattern) = path.rsplit_once('/').unwrap_or((".", path));
    if is_pattern(directory) {
        return Err(format!("{path} has a pattern in the name of a directory, which this check does not know"));
    }
    let matcher = Glob::new(pattern).map_err(|error| format!("{path}: {error}"))?.compile_matcher();
    let entries = std::fs::read_dir(directory).map_err(|error| format!("{directory} cannot be read ({error})"))?;
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| !name.starts_with('.') && matcher.is_match(name))
        .collect();
    names.sort_by(|a, b| b.cmp(a));
    Ok(names.iter().map(|name| Path::new(directory).join(name)).collect())
}

/// Checks that scripts which kill the user's processes run after `mcr job end`.
fn order(found: &Found) -> Checked {
    let name = "Epilog order";
    let own = &found.scripts[found.own];
    let earlier = &found.scripts[..found.own];
    let file = own.file.display();
    let advice = "the worker must commit first; rename the script, so that its name sorts before";
    if let Some(killer) = earlier.iter().find(|script| script.kills().is_some()) {
        let found = format!("{} runs before {file}, and kills processes", killer.file.display());
        let base = own.file.file_name().unwrap_or_default().to_string_lossy();
        return Checked::warning(name, found, format!("{advice} {base} (SLURM runs the last name first)"));
    }
    let call = own.call("end").map_or(0, |(line, _)| line);
    if own.kills().is_some_and(|line| line < call) {
        let found = format!("{file} kills processes before it calls mcr job end");
        return Checked::warning(name, found, "move the call to the beginning of the script");
    }
    Checked::ok(
        name,
        match earlier.len() {
            0 => format!("{file} runs first"),
            1 => format!("1 script runs before {file}, and it does not kill processes"),
            count => format!("{count} scripts run before {file}, and none of them kills processes"),
        },
    )
}

/// Checks that `mcr job end` ends before SLURM's time limit of Epilog. After the limit, SLURM drains the node.
fn timeout(conf: &SlurmConf, found: &Found) -> Checked {
    let (name, limit) = match (conf.value("EpilogTimeout"), conf.value("PrologEpilogTimeout")) {
        (Some(limit), _) => ("EpilogTimeout", Some(limit)),
        (None, limit) => ("PrologEpilogTimeout", limit),
    };
    let options = found.scripts[found.own].call("end").map_or(&[][..], |(_, options)| options);
    let wait = match options.iter().position(|word| word == "--wait") {
        None => Ok(WAIT_DEFAULT_SECONDS),
        Some(at) => options.get(at + 1).map_or("", String::as_str).parse::<u64>(),
    };
    let is_unlimited = |limit: &str| ["infinite", "unlimited"].contains(&limit.to_ascii_lowercase().as_str());
    let Some(limit) = limit.filter(|limit| !is_unlimited(limit)) else {
        return Checked::ok(name, "no limit");
    };
    let Ok(wait) = wait else {
        let found = format!(
            "{limit} s, and the value of --wait in {} is not a number",
            found.scripts[found.own].file.display()
        );
        return Checked::warning(name, found, format!("it must be greater than --wait plus {WAIT_MARGIN_SECONDS} s"));
    };
    let least = wait.saturating_add(WAIT_MARGIN_SECONDS);
    match limit.parse::<u64>() {
        Ok(seconds) if seconds > least => Checked::ok(name, format!("{seconds} s, and mcr job end waits {wait} s")),
        Ok(seconds) => Checked::wrong(
            name,
            format!("{seconds} s, and mcr job end waits {wait} s, so SLURM may drain the node"),
            format!("set {name} to more than {least} s, or shorten --wait"),
        ),
        Err(_) => Checked::warning(name, format!("{limit} is no number"), format!("set it to more than {least} s")),
    }
}

fn socket(socket: &Path) -> Checked {
    let name = "mcr node";
    let shown = socket.display();
    match ask(socket, &Request::Jobs, ANSWER_MAX) {
        Ok(Reply::Jobs(_)) => Checked::ok(name, format!("it answers at {shown}")),
        Ok(other) => {
            Checked::wrong(name, format!("it answered {other:?} at {shown}"), "restart it: another version runs")
        }
        Err(error) => {
            let advice = "run systemctl enable --now mcr-node.socket, and look at journalctl -u mcr-node";
            Checked::wrong(name, format!("it does not answer at {shown} ({error})"), advice)
        }
    }
}

/// Resolves the cluster's file for an example of a job.
fn cluster_file() -> Checked {
    let name = "cluster file";
    let file = cluster_path();
    if !file.exists() {
        return match file == Path::new(CLUSTER_FILE) {
            true => Checked::ok(name, format!("there is no {}, so each user names a store", file.display())),
            false => {
                Checked::warning(name, format!("there is no {}", file.display()), "create it, or unset MCR_CLUSTER")
            }
        };
    }
    match example_of(&file) {
        Ok(_) => Checked::ok(name, file.display().to_string()),
        Err(error) => Checked::wrong(name, format!("{error:#}"), "correct the file; no job is saved until then"),
    }
}

/// The settings of an example of a job, from the cluster's file alone.
fn example_of(file: &Path) -> anyhow::Result<Option<Settings>> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let mut variables: BTreeMap<String, String> = ["JOB_ID", "JOB_NAME", "ARRAY_TASK_ID", "ARRAY_JOB_ID"]
        .map(|name| (format!("SLURM_{name}"), "1".to_owned()))
        .into();
    // The environment of a job is not known here, so each variable has the value `x`.
    let named_in = text.split("${").skip(1).filter_map(|rest| rest.split_once('}'));
    variables.extend(named_in.map(|(name, _)| (name.to_owned(), "x".to_owned())));
    let mut facts = Facts::of_job(variables, "user".into(), 1000, Path::new("/"));
    facts.directories.clear(); // the user's file is not read
    Settings::find(&facts)
}

/// Checks whether this node can use the certificate of the gates. `None`: there are no gates.
fn gates() -> Option<Checked> {
    let name = "gates";
    let settings = example_of(&cluster_path()).ok()??;
    let gates = settings.node_options().ok()?.gates;
    if gates.is_empty() {
        return None;
    }
    let file = gate_options().ok()?.directory.join("cluster.pem");
    let read = std::fs::read_to_string(&file).map_err(anyhow::Error::from);
    Some(match read.and_then(|text| Ok(GateTrust::new(&text)?)) {
        Ok(_) => Checked::ok(name, gates.join(", ")),
        Err(error) => {
            let advice = "copy the file from a node of a gate; no job is saved until then";
            Checked::wrong(name, format!("{}: {error:#}", file.display()), advice)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(text: &str) -> Script {
        Script { file: "/e/90-mcr".into(), text: Ok(text.lines().map(words).collect()), is_executable: true }
    }

    #[test]
    fn calls_are_found_in_scripts_but_not_in_their_comments() {
        for text in
            ["exec /usr/bin/mcr job end --wait 20", "[ -x /x ] && \"/opt/mcr\" job end || true", "(mcr job end)"]
        {
            assert!(script(text).call("end").is_some(), "{text}");
        }
        for text in ["# mcr job end", "mcr job begin", "mcrx job end", ""] {
            assert!(script(text).call("end").is_none(), "{text}");
        }
        assert_eq!(script("# kill\nset -e\n/usr/bin/pkill -u \"$SLURM_JOB_UID\"").kills(), Some(2));
        assert_eq!(script("echo skilled # no").kills(), None);
    }

    #[test]
    fn the_shipped_scripts_call_mcr() {
        let epilog = script(include_str!("../../../deploy/slurm/epilog.d/90-mcr"));
        assert_eq!(epilog.call("end").expect("called").1, ["--wait", "20"]);
        assert_eq!(epilog.kills(), None);
        assert!(script(include_str!("../../../deploy/slurm/prolog.d/10-mcr")).call("begin").is_some());
    }

    #[test]
    fn the_files_of_a_pattern_are_in_the_order_in_which_slurm_runs_them() {
        let dir = tempfile::tempdir().expect("a directory");
        for name in ["10-a", "90-mcr", "50-b.sh", "50-b.sh~", ".hidden"] {
            std::fs::write(dir.path().join(name), "").expect("written");
        }
        for (pattern, expected) in [
            ("*", &["90-mcr", "50-b.sh~", "50-b.sh", "10-a"][..]),
            ("*.sh", &["50-b.sh"]),
            ("?0-[am]*", &["90-mcr", "10-a"]),
            ("a", &["a"]),
        ] {
            let files = files_of(&format!("{}/{pattern}", dir.path().display())).expect("a pattern");
            let names: Vec<_> = files.iter().filter_map(|file| file.file_name()?.to_str()).collect();
            assert_eq!(names, expected, "{pattern}");
        }
    }

    #[test]
    fn flags_that_include_alloc_are_accepted() {
        for (flags, expected) in [
            (Some("Alloc"), Status::Ok),
            (Some("NoHold, ALLOC"), Status::Ok),
            (Some("Contain"), Status::Ok),
            (Some("Serial"), Status::Wrong),
            (None, Status::Wrong),
        ] {
            assert_eq!(prolog_flags(flags).status, expected, "{flags:?}");
        }
    }
}
