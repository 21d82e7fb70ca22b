//! Tests that the JSON of every command has the shape that docs/json.schema.json describes, and that errors are JSON.

use crate::support::*;
use mcr_test_support::Process;
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// The directory of the documents.
fn document(name: &str) -> String {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs").join(name);
    std::fs::read_to_string(file).expect("read")
}

/// The schemas, by command. A value is valid only if it has one of the shapes that `anyOf` at the top names, so each
/// schema must be among these shapes.
pub fn schemas() -> Map<String, Value> {
    let schema: Value = serde_json::from_str(&document("json.schema.json")).expect("JSON");
    let schemas = schema["$defs"].as_object().expect("schemas").clone();
    let shapes = schema["anyOf"].as_array().expect("shapes");
    let named: BTreeSet<&str> = shapes.iter().filter_map(named_shape).collect();
    let known: BTreeSet<&str> = schemas.keys().map(String::as_str).collect();
    assert_eq!(named, known, "anyOf at the top does not name each schema");
    schemas
}

/// The schema to which a shape of `anyOf` refers.
fn named_shape(shape: &Value) -> Option<&str> {
    shape["$ref"].as_str()?.strip_prefix("#/$defs/")
}

/// Compares a value with a schema. Only the keywords that the document uses are known; another keyword is an error.
pub fn check(schema: &Value, value: &Value, at: &str) -> Result<(), String> {
    let wrong = |what: &str| Err(format!("{at}: {what}: {value}"));
    for (keyword, rule) in schema.as_object().expect("a schema") {
        match keyword.as_str() {
            "const" if value != rule => return wrong("another value"),
            "const" => {}
            "type" => {
                let one = [rule.clone()];
                let types = rule.as_array().map_or(&one[..], Vec::as_slice);
                if !types.iter().any(|name| is_of_type(value, name.as_str().expect("a type"))) {
                    return wrong(&format!("the type is not {rule}"));
                }
            }
            "enum" if !rule.as_array().expect("words").contains(value) => return wrong("an unknown word"),
            "enum" => {}
            "required" => {
                for name in rule.as_array().expect("names") {
                    if value.is_object() && value.get(name.as_str().expect("a name")).is_none() {
                        return wrong(&format!("{name} is missing"));
                    }
                }
            }
            "items" => {
                let items = value.as_array().map_or(&[][..], Vec::as_slice);
                items.iter().enumerate().try_for_each(|(nth, item)| check(rule, item, &format!("{at}[{nth}]")))?;
            }
            "properties" => {
                for (name, field) in value.as_object().into_iter().flatten() {
                    rule.get(name).map_or(Ok(()), |rule| check(rule, field, &format!("{at}.{name}")))?;
                }
            }
            "additionalProperties" => {
                let known = |name: &str| schema.get("properties").is_some_and(|all| all.get(name).is_some());
                for (name, field) in value.as_object().into_iter().flatten().filter(|(name, _)| !known(name)) {
                    match rule {
                        Value::Bool(false) => return wrong(&format!("{name} is not in the schema")),
                        rule => check(rule, field, &format!("{at}.{name}"))?,
                    }
                }
            }
            other => panic!("the keyword {other} is not checked here"),
        }
    }
    Ok(())
}

fn is_of_type(value: &Value, name: &str) -> bool {
    match name {
        "string" => value.is_string(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "object" => value.is_object(),
        "array" => value.is_array(),
        other => panic!("the type {other} is not checked here"),
    }
}

/// All commands whose output was checked.
#[derive(Default)]
struct Checked(BTreeSet<String>);

impl Checked {
    /// Runs a command and compares its output with the schema of this name. Returns the output.
    fn run(&mut self, name: &str, command: &mut Command, expected: i32) -> Value {
        let value = run_json(command, expected);
        let schemas = schemas();
        let schema = schemas.get(name).unwrap_or_else(|| panic!("no schema {name}"));
        check(schema, &value, name).unwrap_or_else(|error| panic!("{command:?}: {error}"));
        self.0.insert(name.to_owned());
        value
    }
}

struct Site {
    dir: TempDir,
}

impl Site {
    fn new() -> Self {
        let site = Self { dir: tempfile::tempdir().expect("a directory") };
        std::fs::create_dir(site.path("data")).expect("made");
        (1..=3).for_each(|step| (0..4).for_each(|rank| write_rank(&site.path("data"), step, rank, 4000)));
        make_store(&site.path("store"));
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn command(&self, args: &str) -> Command {
        let mut command = mcr();
        command.args(args.split(' ')).arg("--store").arg(self.path("store"));
        command
    }

    fn save(&self) -> Command {
        let mut command = self.command("save --job wave --group-size 2");
        command.arg(self.path("data"));
        command
    }

    fn bench(&self, what: &str) -> Command {
        let mut command = mcr();
        command.args(["bench", what, "--sample", "64K", "--time-limit", "60"]).arg(self.path("data"));
        command
    }
}

#[test]
fn the_json_of_every_command_has_the_documented_shape() {
    let site = Site::new();
    let mut checked = Checked::default();
    let to = site.path("to");
    checked.run("restart", site.command("restart").arg("--to").arg(&to), 3);
    std::fs::write(site.path("data/notes.txt"), "no checkpoint").expect("written");
    checked.run("save", &mut site.save(), 4);
    std::fs::remove_file(site.path("data/notes.txt")).expect("removed");
    checked.run("save", &mut site.save(), 0);
    let listed = checked.run("list", &mut site.command("list"), 0);
    assert_eq!(listed["checkpoints"].as_array().map(Vec::len), Some(3));
    checked.run("show", &mut site.command("show"), 0);
    checked.run("advise", &mut site.command("advise --mtbf 24 --write-seconds 1 --measure --sample 64K"), 0);
    checked.run("verify", &mut site.command("verify"), 0);
    inside_a_checkpoint(&site, &mut checked);
    let from = site.path("store");
    let copy = |more: &str| {
        let mut command = mcr();
        command.args(format!("copy --create {more}").split(' ')).arg("--from").arg(&from);
        command.arg("--store").arg(site.path("archive"));
        command
    };
    checked.run("copy", &mut copy("--all"), 0);
    checked.run("copy", &mut copy("latest --dry-run"), 0);
    checked.run("verify", site.command("verify --repair").arg("--from").arg(site.path("archive")), 0);
    checked.run("restart --dry-run", site.command("restart --dry-run").arg("--to").arg(&to), 0);
    std::fs::create_dir_all(&to).expect("made");
    std::fs::write(to.join("sim.it_3.rank_0.h5"), "another content").expect("written");
    let restarted = checked.run("restart", site.command("restart").arg("--to").arg(&to), 0);
    assert!(restarted["moved_aside"].is_object(), "{restarted}");
    checked.run("prune", &mut site.command("prune --keep 1 --dry-run"), 0);
    checked.run("prune", &mut site.command("prune --keep 1 --repack-below 0"), 0);
    let all = checked.run("list", &mut site.command("list --all"), 0);
    assert!(all["checkpoints"].as_array().expect("a list").iter().any(|one| one["held"].is_object()), "{all}");
    let stats = checked.run("stats", &mut site.command("stats"), 0);
    let on_disk: u64 = contents(&site.path("store")).values().map(|bytes| bytes.len() as u64).sum();
    assert_eq!(stats["disk_bytes"], on_disk);
    // A damaged and an incomplete checkpoint.
    (0..4).for_each(|rank| write_rank(&site.path("data"), 4, rank, 4000));
    checked.run("save", &mut site.save(), 0);
    let container = |id: &str, group: u32| site.path(&format!("store/wave/{id}/group-{group:04}.mcr"));
    std::fs::remove_file(container("sim.it_4", 0).with_extension("manifest")).expect("removed");
    let bytes = std::fs::read(container("sim.it_3", 0)).expect("read");
    std::fs::write(container("sim.it_3", 0), vec![7; bytes.len()]).expect("written");
    checked.run("verify", &mut site.command("verify"), 1);
    checked.run("list", &mut site.command("list"), 0);
    checked.run("advise", &mut site.command("advise --mtbf 24 --write-seconds 1"), 0);
    checked.run("layouts", mcr().arg("layouts"), 0);
    let config = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../deploy/config/mcr.toml");
    checked.run("config check", mcr().args(["config", "check"]).arg(config), 0);
    let defaults = checked.run("config defaults", mcr().args(["config", "defaults"]), 0);
    let text = String::from_utf8(run(mcr().args(["config", "defaults"]), 0).stdout).expect("UTF-8");
    assert_eq!(defaults["text"], text);
    certificates(&site.path("certificates"), &mut checked);
    // A hook always succeeds, and says in its object what happened.
    let begun = checked.run("job begin", mcr().args(["job", "begin", "--run-dir"]).arg(site.path("none")), 0);
    assert!(begun["outcome"] == "failed" && begun["reason"].is_string(), "{begun}");
    let file = format!("job = \"wave\"\nwatch = \"data\"\nstore = {:?}\n", site.path("store"));
    std::fs::write(site.path("mcr.toml"), file).expect("written");
    checked.run("job show", mcr().args(["job", "show"]).current_dir(site.dir.path()), 0);
    let slurm_conf = site.path("slurm.conf");
    checked.run("node check", mcr().args(["node", "check", "--slurm-conf"]).arg(&slurm_conf), 1);
    std::fs::write(&slurm_conf, "ClusterName=test\nPrologFlags=Alloc\n").expect("written");
    checked.run("node check", mcr().args(["node", "check", "--slurm-conf"]).arg(&slurm_conf), 1);
    checked.run("bench codecs", &mut site.bench("codecs"), 0);
    checked.run("bench schemes", &mut site.bench("schemes"), 0);
    checked.run("bench partitions", mcr().args(["bench", "partitions", "--sub-buffers", "1,2"]), 0);
    let scale = "bench scale --ranks 8,16 --group-size 4 --steps 1 --failures";
    checked.run("bench scale", mcr().args(scale.split(' ')), 0);
    checked.run("error", &mut site.command("show nothing"), 1);
    of_daemons(&site, &mut checked);
    let known: BTreeSet<String> = schemas().keys().cloned().collect();
    assert_eq!(checked.0, known, "each schema was compared with an output");
}

/// Checks the commands that make and replace a key in this directory.
fn certificates(dir: &Path, checked: &mut Checked) {
    let mut cert = |name: &str, more: &[&str]| {
        let mut command = mcr();
        command.args(name.split(' ')).args(more).arg("--dir").arg(dir);
        let value = checked.run(name, &mut command, 0);
        let files: Vec<String> = serde_json::from_value(value["files"].clone()).expect("names");
        assert!(files.iter().all(|file| Path::new(file).is_file()), "{value}");
        (value["outcome"].as_str().expect("a word").to_owned(), files.len())
    };
    assert_eq!(cert("cert init", &[]), ("made".to_owned(), 2));
    assert_eq!(cert("cert init", &[]), ("kept".to_owned(), 2));
    assert_eq!(cert("cert rotate", &["--step"]), ("added".to_owned(), 1));
    assert_eq!(cert("cert rotate", &["--wait", "0"]), ("removed".to_owned(), 2));
}

/// Checks the commands that read single files and variables.
fn inside_a_checkpoint(site: &Site, checked: &mut Checked) {
    let listed = checked.run("ls", &mut site.command("ls latest"), 0);
    assert_eq!(listed["files"][0]["variables"][0]["role"], "skeleton", "{listed}");
    checked.run("cat", &mut site.command("cat latest sim.it_3.rank_0.h5"), 0);
    let extract = |variable: &str, name: &str| {
        let mut command = site.command(&format!("extract latest --variable {variable}"));
        command.arg("--to").arg(site.path(name));
        command
    };
    let array = checked.run("extract", &mut extract("state/ids", "ids.npy"), 0);
    assert_eq!((&array["joined"], &array["shape"][0]), (&"stacked".into(), &4.into()), "{array}");
    checked.run("extract", &mut extract("state/*", "state.h5"), 0);
    let differing = checked.run("diff", &mut site.command("diff latest~1 latest"), 0);
    assert_eq!(differing["same"], false);
    checked.run("diff", &mut site.command("diff latest latest"), 0);
    if !crate::mount::can_mount() {
        checked.0.insert("mount".to_owned());
        return;
    }
    // The name of the directory is not UTF-8.
    let mount_point = site.dir.path().join(OsStr::from_bytes(b"mounted\xff"));
    std::fs::create_dir(&mount_point).expect("made");
    let mut command = site.command("mount");
    command.arg(&mount_point).arg("--json").stdout(Stdio::piped());
    let mut mount = Process::start(&mut command).expect("it starts");
    let output = mount.0.stdout.take().expect("piped");
    // `mcr mount` prints one object and continues to run, so only one value is read.
    let value = serde_json::Deserializer::from_reader(output).into_iter::<Value>().next();
    let value = value.expect("a value").expect("JSON");
    check(&schemas()["mount"], &value, "mount").expect("the documented shape");
    checked.0.insert("mount".to_owned());
    assert!(value["mounted"].as_str().is_some_and(|path| path.ends_with("mounted\\xff")), "{value}");
    assert!(mount_point.join("wave").is_dir());
    assert!(mount.end("TERM").expect("it ends").success());
}

/// Checks the commands that ask daemons.
fn of_daemons(site: &Site, checked: &mut Checked) {
    let store = site.path("of-daemons");
    let (_aggregator, address) = Daemon::aggregator(site.dir.path(), "a", &store, "");
    let watch = site.path("run");
    std::fs::create_dir(&watch).expect("made");
    let more = "ranks = 2\nquiet-ms = 20\ncheckpoint-quiet-ms = 40\nlayout = \"{checkpoint}.rank_{rank}.h5\"";
    let _agent = Daemon::agent(site.dir.path(), "n", &watch, std::slice::from_ref(&address), more);
    (0..2).for_each(|rank| write_rank(&watch, 1, rank, 900));
    wait_complete(&store, "sim.it_1");
    write_rank(&watch, 2, 0, 900);
    let flush = || {
        let mut command = mcr();
        command.args(["flush", "--timeout", "1", "--state"]).arg(site.path("n.state"));
        command
    };
    checked.run("flush", &mut flush(), 5);
    checked.run("flush", mcr().args(["flush", "--timeout", "1", "--state"]).arg(site.path("nobody")), 1);
    let both = format!("{address},127.0.0.1:1");
    let status = checked.run("status", mcr().args(["status", "--aggregators", &both]), 4);
    let groups = status["aggregators"][0]["checkpoints"].as_array().expect("a list").clone();
    assert!(groups.iter().any(|group| group["checkpoint"] == "sim.it_1" && group["reason"].is_null()), "{status}");
    let mut watch = mcr();
    watch.args(["status", "--watch", "--json", "--aggregators", &both]).stdout(Stdio::piped());
    let mut watch = Process::start(&mut watch).expect("it starts");
    let line = BufReader::new(watch.0.stdout.take().expect("piped")).lines().next().expect("a line").expect("UTF-8");
    let line: Value = serde_json::from_str(&line).expect("an object on one line");
    check(&schemas()["status"], &line, "status").expect("the documented shape");
    assert!(watch.end("TERM").expect("it ends").success());
    events(&site.path("run"), &store, &address, checked);
    let run_dir = site.path("node");
    std::fs::create_dir(&run_dir).expect("made");
    let node = Daemon::start(mcr().args(["node", "--own", "--run-dir"]).arg(&run_dir));
    node.wait_for_log("serving jobs");
    checked.run("job list", mcr().args(["job", "list", "--run-dir"]).arg(&run_dir), 0);
    let mut end = mcr();
    end.args(["job", "end", "--run-dir"]).arg(&run_dir).env("SLURM_JOB_ID", "77");
    assert_eq!(checked.run("job end", &mut end, 0)["outcome"], "not-saved");
}

/// Checks the events of a checkpoint that is written now, and of an address without an aggregator.
fn events(watch: &Path, store: &Path, address: &str, checked: &mut Checked) {
    let mut follow = mcr();
    follow.args([
        "status",
        "--json",
        "--follow",
        "--interval",
        "1",
        "--aggregators",
        &format!("{address},127.0.0.1:1"),
    ]);
    let mut follow = Process::start(follow.stdout(Stdio::piped())).expect("it starts");
    let lines = BufReader::new(follow.0.stdout.take().expect("piped")).lines();
    let mut events = lines.map(|line| {
        let event: Value = serde_json::from_str(&line.expect("UTF-8")).expect("an object on one line");
        check(&schemas()["status --follow"], &event, "status --follow").expect("the documented shape");
        event
    });
    let mut next = |name: &str| events.find(|event| event["event"] == name).expect("an event");
    let lost = next("aggregator-lost");
    assert_eq!((&lost["aggregator"], &lost["job"]), (&"127.0.0.1:1".into(), &Value::Null), "{lost}");
    (0..2).for_each(|rank| write_rank(watch, 3, rank, 900));
    let announced = next("announced");
    assert_eq!((&announced["label"], &announced["aggregator"]), (&"sim.it_3".into(), &address.into()), "{announced}");
    let committed = next("committed");
    assert_eq!((&committed["checkpoint"], &committed["job"]), (&"sim.it_3".into(), &"job".into()), "{committed}");
    assert!(committed["raw_bytes"].as_u64() > committed["stored_bytes"].as_u64(), "{committed}");
    wait_complete(store, "sim.it_3");
    checked.0.insert("status --follow".to_owned());
    assert!(follow.end("TERM").expect("it ends").success());
}

#[test]
fn the_schema_accepts_the_object_of_each_command() {
    let schema: Value = serde_json::from_str(&document("json.schema.json")).expect("JSON");
    let all = schema["anyOf"].as_array().expect("a list").iter().filter_map(|one| one["$ref"].as_str());
    let named: BTreeSet<String> = all.filter_map(|name| Some(name.strip_prefix("#/$defs/")?.to_owned())).collect();
    assert_eq!(named, schemas().keys().cloned().collect::<BTreeSet<_>>());
}

#[test]
fn the_document_lists_the_fields_of_every_object() {
    let text = document("json.md");
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `mcr ")?.split_once("` | "));
    let mut objects = 0;
    for (name, row) in rows {
        let schema = schemas().remove(name).unwrap_or_else(|| panic!("no schema {name}"));
        let listed: BTreeSet<&str> = row.split('`').skip(1).step_by(2).collect();
        let fields = schema["properties"].as_object().expect("fields").keys().map(String::as_str);
        assert_eq!(listed, fields.filter(|field| *field != "version").collect::<BTreeSet<_>>(), "mcr {name}");
        objects += 1;
    }
    assert_eq!(objects + 1, schemas().len(), "each object has a row, and a failed command too");
}

#[test]
fn the_document_explains_every_field_of_the_schema_and_no_other_field() {
    fn fields(schema: &Value, into: &mut BTreeSet<String>) {
        for (name, field) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
            into.insert(name.clone());
            fields(field, into);
        }
        ["items", "additionalProperties"].iter().filter_map(|key| schema.get(key)).for_each(|one| fields(one, into));
    }
    let mut known = BTreeSet::new();
    let text = document("json.md");
    for (name, schema) in schemas() {
        fields(&schema, &mut known);
        assert!(name == "error" || text.contains(&format!("| `mcr {name}` |")), "{name}");
    }
    let (_, table) = text.split_once("## Fields").expect("a table");
    let rows = table.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
    let explained: BTreeSet<String> =
        rows.filter(|(_, text)| text.len() > 4).map(|(name, _)| name.to_owned()).collect();
    assert_eq!(explained, known);
}

#[test]
fn an_error_is_json_with_a_code_advice_and_a_path() {
    let site = Site::new();
    let error = |args: &str, expected: i32| run_json(mcr().args(args.split(' ')), expected)["error"].clone();
    let nope = site.path("nope");
    let nope = nope.to_str().expect("UTF-8");
    let missing = error(&format!("list --store {nope}"), 1);
    assert_eq!((&missing["code"], &missing["path"]), (&1.into(), &nope.into()), "{missing}");
    assert!(missing["advice"].as_str().is_some_and(|text| text.contains("Check the name")), "{missing}");
    let wrong = error("list --sotre x", 1);
    assert!(wrong["message"].as_str().is_some_and(|text| text.contains("--sotre")), "{wrong}");
    assert!(wrong["advice"].as_str().is_some_and(|text| text.contains("--store")), "{wrong}");
    std::fs::write(site.path("bad.toml"), "[cnc]\njop = \"x\"\n").expect("written");
    let file = site.path("bad.toml");
    let unknown = error(&format!("config check {}", file.display()), 1);
    assert_eq!(
        (&unknown["path"], &unknown["advice"]),
        (&file.to_str().into(), &"write job, or remove the line".into())
    );
    let empty = site.path("empty");
    std::fs::create_dir(&empty).expect("made");
    let empty = empty.to_str().expect("UTF-8");
    let store = site.path("store");
    let store = store.to_str().expect("UTF-8");
    run(&mut site.save(), 0);
    for (args, path, advice) in [
        (format!("save {nope} --store {store}"), nope, "give the directory"),
        (format!("save {} --store {store}", file.display()), file.to_str().expect("UTF-8"), "give the directory"),
        (format!("save {empty} --store {store}"), empty, "give the directory"),
        (format!("mount {nope} --store {store}"), nope, "give an empty directory"),
        (format!("list --store {store} --job wav"), store, "did you mean \"wave\"?"),
        (format!("show sim.it_33 --store {store} --job wave"), store, "did you mean \"sim.it_3\"?"),
    ] {
        let told = error(&args, 1);
        assert_eq!(told["path"], path, "{args}: {told}");
        assert!(told["advice"].as_str().is_some_and(|text| text.starts_with(advice)), "{args}: {told}");
        let message = told["message"].as_str().expect("a text");
        assert!(!message.contains("?;") && !message.contains(advice), "{args}: {told}");
    }
    let no_rule = error(&format!("prune --store {store}"), 1);
    assert!(no_rule["advice"].as_str().is_some_and(|text| text.starts_with("say what to keep")), "{no_rule}");
    let no_store = error("list", 1);
    assert!(no_store["message"].as_str().is_some_and(|text| text.contains("--store")), "{no_store}");
    // Here, --json is an option of the application, and not an option of mcr.
    let mut run = mcr();
    let output = run.args(["run", "--config", nope, "--", "true", "--json"]).output().expect("it starts");
    assert!(output.stdout.is_empty() && output.status.code() != Some(0));
}

#[test]
fn a_save_that_fails_or_is_partial_has_an_error_with_advice_and_a_path() {
    let site = Site::new();
    let error = |save: &mut Command, expected: i32| {
        let report = run_json(save, expected);
        check(&schemas()["save"], &report, "save").expect("the documented shape");
        report["error"].clone()
    };
    let data = site.path("data");
    let failed = error(site.save().args(["--ranks", "8"]), 1);
    assert_eq!((&failed["code"], &failed["path"]), (&1.into(), &data.to_str().into()), "{failed}");
    assert!(failed["message"].as_str().is_some_and(|text| text.contains("not saved: sim.it_")), "{failed}");
    assert!(failed["advice"].as_str().is_some_and(|text| text.ends_with("and save again")), "{failed}");
    std::fs::write(data.join("notes.txt"), "no checkpoint").expect("written");
    let partial = error(&mut site.save(), 4);
    assert_eq!((&partial["code"], &partial["path"]), (&4.into(), &data.to_str().into()), "{partial}");
    assert!(partial["message"].as_str().is_some_and(|text| text.contains("notes.txt")), "{partial}");
    std::fs::remove_file(data.join("notes.txt")).expect("removed");
    assert!(error(&mut site.save(), 0).is_null());
}

#[test]
fn a_value_that_was_not_measured_is_null_in_json_and_a_dash_in_a_table() {
    let site = Site::new();
    let failed = run_json(site.save().args(["--ranks", "8"]), 1);
    assert!(failed["checkpoints"][0]["elapsed_ms"].is_null(), "{failed}");
    let text = |command: &mut Command, expected| String::from_utf8(run(command, expected).stdout).expect("UTF-8");
    let table = text(site.save().args(["--ranks", "8"]), 1);
    let row = table.lines().find(|line| line.starts_with("sim.it_1")).expect("a row");
    assert!(!row.contains("0.00 s") && !row.contains("B/s") && !row.contains("0 B"), "{table}");
    run(&mut site.save(), 0);
    for id in ["sim.it_1", "sim.it_2", "sim.it_3"] {
        (0..2).for_each(|group| {
            let manifest = site.path(&format!("store/wave/{id}/group-{group:04}.manifest"));
            std::fs::remove_file(manifest).expect("removed");
        });
    }
    let listed = run_json(&mut site.command("list --job wave"), 0);
    check(&schemas()["list"], &listed, "list").expect("the documented shape");
    let line = &listed["checkpoints"][0];
    for field in ["ratio", "created_unix_ms", "elapsed_ms"] {
        assert!(line[field].is_null(), "{field}: {line}");
    }
    let table = text(&mut site.command("list --job wave"), 0);
    assert!(!table.contains("1.000") && !table.contains("0.00 s") && !table.contains("0 B"), "{table}");
}

#[test]
fn an_error_whose_message_names_a_file_has_the_path_of_this_file() {
    let site = Site::new();
    run(&mut site.save(), 0);
    let (no_directory, file) = (site.path("nodir/"), site.path("file"));
    std::fs::write(&file, "text").expect("written");
    let directory = site.path("d.h5");
    std::fs::create_dir(&directory).expect("made");
    let below_none = site.path("none/d.h5");
    let inside = site.path("store/to");
    let open = site.path("open");
    make_store(&open);
    std::fs::set_permissions(&open, std::os::unix::fs::PermissionsExt::from_mode(0o777)).expect("set");
    let job = site.path("job");
    std::fs::create_dir(&job).expect("made");
    std::fs::write(job.join("mcr.toml"), "job = \"wave\"\nwatch = \"data\"\nstore = \"st\"\n").expect("written");
    let with_path = |args: &str, path: &Path| {
        let mut command = site.command(args.trim_end_matches(" --to"));
        command.args(args.ends_with(" --to").then_some("--to")).arg(path);
        command
    };
    let mut relative = mcr();
    relative.arg("list").current_dir(&job);
    let mut not_own = mcr();
    not_own.args(["save", "--job", "wave", "--store"]).arg(&open).arg(site.path("data"));
    let extract = "extract latest --variable state/ids --to";
    for (mut command, path, code) in [
        (with_path("diff latest", &no_directory), no_directory, 1),
        (with_path(extract, &below_none), below_none, 1),
        (with_path(extract, &directory), directory, 1),
        (with_path("restart --to", &file), file.clone(), 1),
        (with_path("restart --to", &file.join("below")), file.join("below"), 1),
        (with_path("restart --to", &inside), inside, 1),
        (relative, job.join("mcr.toml"), 1),
        (not_own, open, 77),
    ] {
        let error = run_json(&mut command, code)["error"].clone();
        let named = error["path"].as_str().unwrap_or_else(|| panic!("no path: {error}"));
        assert!(Path::new(named).starts_with(&path), "{error}");
        assert!(error["message"].as_str().is_some_and(|text| text.contains(named)), "{error}");
        assert_eq!(error["code"], code);
    }
}

#[test]
fn a_command_without_a_file_names_the_missing_option_and_no_key_of_a_file() {
    let dir = tempfile::tempdir().expect("a directory");
    for (args, expected, option) in [
        ("flush --json", 1, "--job"),
        ("run --store s --watch . --create -- true", 78, "--job"),
        ("run --store s --job wave --create -- true", 78, "--watch"),
        ("run --watch . --job wave -- true", 78, "--store"),
    ] {
        let output = run(mcr().current_dir(dir.path()).args(args.split(' ')), expected);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains(&format!("mcr: {option} is missing; give {option} ")), "{args}: {said}");
        assert!(!said.contains("cnc.") && !said.contains("anc."), "{args}: {said}");
    }
    let args = "run --store s --watch . --job wave --create --layout enso -- true";
    let output = run(mcr().current_dir(dir.path()).args(args.split(' ')), 78);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let expected = "mcr: --layout: there is no layout \"enso\"; did you mean \"enzo\"? The presets are ";
    assert!(said.contains(expected) && !said.contains("cnc.layout") && !said.contains("?;"), "{said}");
}

#[test]
fn the_schema_accepts_the_events_of_status_follow() {
    let schema: Value = serde_json::from_str(&document("json.schema.json")).expect("JSON");
    let shapes = schema["anyOf"].as_array().expect("shapes");
    assert!(shapes.iter().any(|shape| named_shape(shape) == Some("status --follow")));
}

#[test]
fn a_schema_refuses_another_shape() {
    let schema = schemas()["config check"].clone();
    let good = serde_json::json!({ "version": 1, "file": "x", "tables": ["cnc"], "good": true });
    assert_eq!(check(&schema, &good, ""), Ok(()));
    for (name, value) in
        [("version", 2.into()), ("file", Value::Null), ("tables", serde_json::json!(["x"])), ("more", 1.into())]
    {
        let mut bad = good.clone();
        bad[name] = value;
        assert!(check(&schema, &bad, "").is_err(), "{bad}");
    }
    assert!(check(&schema, &serde_json::json!({ "version": 1 }), "").is_err());
}

#[test]
fn an_error_of_the_file_system_names_the_path_and_what_to_do() {
    let site = Site::new();
    run(&mut site.save(), 0);
    let to = site.path("to");
    std::fs::create_dir(&to).expect("made");
    let manifest = site.path("store/wave/sim.it_3/group-0000.manifest");
    std::fs::remove_file(&manifest).expect("removed");
    std::fs::create_dir(&manifest).expect("made");
    let output = run(site.command("verify sim.it_3").arg("--json"), 1);
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(text.contains("group-0000.manifest"), "{text}");
    let output = run(mcr().args(["config", "check", "/nowhere/mcr.toml"]), 1);
    let text = String::from_utf8(output.stderr).expect("UTF-8");
    assert!(text.contains("/nowhere/mcr.toml: cannot be read: No such file"), "{text}");
    assert!(text.contains("mcr: advice: check the path"), "{text}");
}
