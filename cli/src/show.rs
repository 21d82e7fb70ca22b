//! `mcr show`: the contents of a checkpoint, class by class or file by file.

use crate::args::ShowArgs;
use crate::common::{no_checkpoint_named, one_job, open_store};
use crate::output::{Table, counted, print, print_json, ratio, utc};
use crate::which::{checkpoint_of, is_lost, tell_of_newer};
use anyhow::{Context, bail};
use mcrengine::classify::VariableRef;
use mcrengine::codec::{Chain, Decision, shared_name, since_name};
use mcrengine::container::{ContainerReader, Placement, container_path};
use mcrengine::header::FileKind;
use mcrengine::ids::{CheckpointId, GroupId, JobId};
use mcrengine::manifest::{self, CheckpointState};
use mcrengine::parity;
use mcrengine::store::Store;
use mcrengine::units::human_bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;

/// Number of classes that are shown without `--all`.
const CLASSES_SHOWN_MAX: usize = 20;

#[derive(Default, serde::Serialize)]
struct Class {
    key: String,
    element: String,
    variables: u64,
    raw_bytes: u64,
    /// Raw bytes of the class in segments that hold only this class. Shared and reused bytes are not counted.
    coded_raw_bytes: u64,
    stored_bytes: u64,
    /// Raw bytes that are not stored again, because another rank or an older checkpoint has them.
    reused_raw_bytes: u64,
    /// Raw bytes in segments that also hold other classes: pools of small variables, or classes that predict each
    /// other.
    shared_raw_bytes: u64,
    /// Estimate of the stored bytes of `shared_raw_bytes`. The stored bytes of a segment are divided among its
    /// classes in proportion to their raw bytes.
    shared_stored_bytes_estimate: u64,
    segments: u64,
    chains: BTreeSet<String>,
    /// The reason why these chains were chosen.
    why: BTreeSet<String>,
}

/// Segments of one type and chain that hold variables of several classes.
#[derive(serde::Serialize)]
struct Shared {
    element: String,
    chain: String,
    segments: u64,
    raw_bytes: u64,
    stored_bytes: u64,
    /// The reason why this chain was chosen.
    why: BTreeSet<String>,
}

/// Segments that are predicted from segments of one older checkpoint.
#[derive(Default, serde::Serialize)]
struct Bases {
    segments: u64,
    raw_bytes: u64,
    stored_bytes: u64,
}

#[derive(serde::Serialize)]
struct File {
    path: String,
    rank: u32,
    bytes: u64,
    variables: usize,
    #[serde(skip_serializing_if = "FileKind::is_regular")]
    kind: FileKind,
    digest: String,
}

pub fn run(args: ShowArgs) -> anyhow::Result<ExitCode> {
    let store = open_store(&args.store)?;
    let job = one_job(&store, &args.store)?;
    let all = manifest::list(&store, &job)?;
    let asked = args.checkpoint.as_ref().map(|asked| checkpoint_of(&all, asked)).transpose()?;
    let state = match &asked {
        Some(id) => all
            .iter()
            .find(|state| state.id == *id)
            .ok_or_else(|| no_checkpoint_named(&args.store.store, &job, id, &all))?,
        None => all
            .iter()
            .find(|state| state.is_complete())
            .with_context(|| format!("job {job} has no complete checkpoint; mcr list shows what is missing"))?,
    };
    if args.checkpoint.is_none() {
        tell_of_newer(&all, &state.id, is_lost);
    }
    if state.is_pruned {
        bail!(
            "{} was pruned, and only containers that other checkpoints need are left; mcr list shows the others",
            state.id
        );
    }
    let (classes, files, shared, bases) = look_inside(&store, &job, state)?;
    let parity = Parity::of(&store, &job, state);
    if args.json {
        let mut value = serde_json::json!({
            "job": job, "checkpoint": state.id, "ranks": state.ranks, "groups": state.groups, "scheme": state.scheme.name(),
            "profile": state.profile, "bad": state.bad, "doubt": state.doubt,
            "file_bytes": state.file_bytes, "raw_bytes": state.raw_bytes, "stored_bytes": state.stored_bytes,
            "shared": shared,
            "parity_bytes": parity.bytes, "parity_containers": parity.containers,
            "references": references(state), "coded_with": bases, "classes": classes,
        });
        value["files"] = serde_json::to_value(&files)?;
        print_json(&value)?;
        return Ok(ExitCode::SUCCESS);
    }
    print(&summary(&job, state, &bases, &parity))?;
    print(&if args.files { file_table(&files) } else { class_table(&classes, &shared, &args) })?;
    Ok(ExitCode::SUCCESS)
}

fn references(state: &CheckpointState) -> Vec<CheckpointId> {
    state.references.iter().map(|r| r.checkpoint.clone()).collect::<BTreeSet<_>>().into_iter().collect()
}

/// The parity of the containers of a checkpoint.
#[derive(Default)]
struct Parity {
    /// Number of containers that have parity.
    containers: u32,
    /// Total length of the parity files, in bytes.
    bytes: u64,
    /// The percentages for which the parity was written.
    percent: BTreeSet<u32>,
}

impl Parity {
    fn of(store: &dyn Store, job: &JobId, state: &CheckpointState) -> Self {
        let mut parity = Self::default();
        for group in (0..state.groups).map(GroupId) {
            if let Some(found) = parity::find(store, &container_path(job, &state.id, group)) {
                parity.containers += 1;
                parity.bytes += found.bytes;
                parity.percent.extend(found.percent);
            }
        }
        parity
    }

    /// The line of the summary; empty without parity.
    fn line(&self, groups: u32) -> String {
        let Self { containers, bytes, percent } = self;
        let percent = percent.iter().map(|percent| format!("{percent} %")).collect::<Vec<_>>().join(", ");
        match containers {
            0 => String::new(),
            n if *n == groups => format!("parity {percent}, {}\n", human_bytes(*bytes)),
            n => format!("parity {percent}, {}, for {n} of {groups} containers\n", human_bytes(*bytes)),
        }
    }
}

fn summary(job: &JobId, state: &CheckpointState, bases: &BTreeMap<CheckpointId, Bases>, parity: &Parity) -> String {
    let mut text = format!(
        "job {job}, checkpoint {}\nsaved {} UTC, scheme {}, profile {}\n{}, {} (group size {}), {}\n{} in files, {} \
         stored, ratio {:.3}\n",
        state.id,
        utc(state.created_unix_ms),
        state.scheme.name(),
        state.profile,
        counted(state.ranks, "rank"),
        counted(state.groups, "group"),
        state.group_size,
        counted(state.files, "file"),
        human_bytes(state.file_bytes),
        human_bytes(state.stored_bytes.0),
        ratio(state.file_bytes, state.stored_bytes.0),
    );
    text.push_str(&parity.line(state.groups));
    if let Some(reason) = &state.bad {
        text.push_str(&format!("marked as bad: {reason}\n"));
    }
    if let Some(reason) = &state.doubt {
        text.push_str(&format!("doubtful: {reason}\n"));
    }
    if !state.is_complete() {
        text.push_str(&format!("{}: a restart does not use it\n", state.condition().name().to_uppercase()));
        state.problems.iter().take(10).for_each(|problem| text.push_str(&format!("  {problem}\n")));
    }
    let older = references(state);
    if !older.is_empty() {
        let names = older.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        text.push_str(&format!("refers to containers of {names}\n"));
    }
    for (older, Bases { segments, raw_bytes, stored_bytes }) in bases {
        let (raw, stored) = (human_bytes(*raw_bytes), human_bytes(*stored_bytes));
        let are = if *segments == 1 { "is" } else { "are" };
        let segments = counted(*segments, "segment");
        text.push_str(&format!("{segments} ({raw} raw, {stored} stored) {are} decoded with those of {older}\n"));
    }
    text.push('\n');
    text
}

type Inside = (Vec<Class>, Vec<File>, Vec<Shared>, BTreeMap<CheckpointId, Bases>);

fn look_inside(store: &dyn Store, job: &JobId, state: &CheckpointState) -> anyhow::Result<Inside> {
    let (mut classes, mut files): (BTreeMap<String, Class>, Vec<File>) = Default::default();
    let mut shared: BTreeMap<(String, String), Shared> = BTreeMap::new();
    let mut bases: BTreeMap<CheckpointId, Bases> = BTreeMap::new();
    let mut estimates: BTreeMap<String, f64> = BTreeMap::new();
    let mut opened = 0;
    for group in (0..state.groups).map(GroupId) {
        let reader = match ContainerReader::open(store, job, &state.id, group) {
            Ok(reader) => reader,
            Err(error) if state.is_complete() => return Err(error.into()),
            Err(_) => continue,
        };
        opened += 1;
        let index = reader.index();
        // The reasons are only informative. `mcr list` and `mcr verify` report a manifest that cannot be read.
        let decisions = manifest::read_manifest(store, job, &state.id, group).map(|m| m.decisions).unwrap_or_default();
        let decisions: BTreeMap<&str, &Decision> = decisions.iter().map(|d| (d.class.as_str(), d)).collect();
        let why = |class: &str, chain: &Chain| {
            let decided = |class: &str| decisions.get(class).copied();
            let since = decided(&since_name(class)).filter(|decision| decision.chain().as_ref() == Some(chain));
            reason(since.or(decided(class)), chain, &state.id)
        };
        files.extend(index.files().iter().map(|file| File {
            path: file.path.to_string(),
            rank: file.rank.0,
            bytes: file.bytes,
            variables: file.variables.len(),
            kind: file.kind,
            digest: file.digest.to_hex(),
        }));
        let mut class_of: BTreeMap<VariableRef, &str> = BTreeMap::new();
        for class in index.classes() {
            let entry = classes.entry(class.key.to_string()).or_default();
            entry.key = class.key.to_string();
            entry.element = class.element.to_string();
            entry.variables += class.members.len() as u64;
            for member in &class.members {
                class_of.insert(*member, &class.key);
                let raw_bytes = member.of(index.files()).raw_bytes.0;
                entry.raw_bytes += raw_bytes;
                if !matches!(index.placement(*member), Some(Placement::Pieces)) {
                    entry.reused_raw_bytes += raw_bytes;
                }
            }
        }
        for (number, segment) in (0u32..).zip(index.segments()) {
            if let Some(base) = segment.base().and_then(|base| index.references().get(base.reference as usize)) {
                let with = bases.entry(base.checkpoint.clone()).or_default();
                with.segments += 1;
                with.raw_bytes += segment.raw_bytes.0;
                with.stored_bytes += segment.stored_bytes.0;
            }
            match segment
                .class
                .and_then(|class| index.classes().get(class as usize))
                .and_then(|class| classes.get_mut(&*class.key))
            {
                Some(class) => {
                    class.coded_raw_bytes += segment.raw_bytes.0;
                    class.stored_bytes += segment.stored_bytes.0;
                    class.segments += 1;
                    class.chains.insert(segment.chain.to_string());
                    class.why.extend(why(&class.key, &segment.chain));
                }
                None => {
                    let chain = segment.chain.to_string();
                    let reason = why(&shared_name(segment.role, &segment.element), &segment.chain);
                    let part = segment.stored_bytes.0 as f64 / segment.raw_bytes.0.max(1) as f64;
                    for piece in index.pieces(number) {
                        if let Some(class) = class_of.get(&piece.variable).and_then(|key| classes.get_mut(*key)) {
                            class.shared_raw_bytes += piece.bytes;
                            estimates
                                .entry(class.key.clone())
                                .and_modify(|e| *e += piece.bytes as f64 * part)
                                .or_insert(piece.bytes as f64 * part);
                            if !class.chains.contains(&chain) {
                                class.chains.insert(chain.clone());
                            }
                            // If only a few bytes of the class are in the pool, the pool's reason is omitted.
                            if class.shared_raw_bytes > class.coded_raw_bytes {
                                class.why.extend(reason.clone());
                            }
                        }
                    }
                    let element = segment.element.to_string();
                    let shared = shared.entry((element.clone(), chain.clone())).or_insert_with(|| Shared {
                        element,
                        chain,
                        segments: 0,
                        raw_bytes: 0,
                        stored_bytes: 0,
                        why: BTreeSet::new(),
                    });
                    shared.segments += 1;
                    shared.raw_bytes += segment.raw_bytes.0;
                    shared.stored_bytes += segment.stored_bytes.0;
                    shared.why.extend(reason);
                }
            }
        }
    }
    if opened == 0 {
        bail!("{}: none of its containers can be read; mcr verify {} shows why", state.id, state.id);
    }
    for (key, estimate) in estimates {
        if let Some(class) = classes.get_mut(&key) {
            class.shared_stored_bytes_estimate = estimate.round() as u64;
        }
    }
    let mut classes: Vec<Class> = classes.into_values().collect();
    classes.sort_by(|a, b| b.raw_bytes.cmp(&a.raw_bytes).then_with(|| a.key.cmp(&b.key)));
    Ok((classes, files, shared.into_values().collect(), bases))
}

/// Why this chain was chosen for a segment of a class. `None` if no reason is known for this chain.
fn reason(decision: Option<&Decision>, chain: &Chain, id: &CheckpointId) -> Option<String> {
    let decision = decision?;
    if decision.chain().as_ref() != Some(chain) {
        return match chain {
            _ if chain.is_raw() => Some("no codec made it smaller".into()),
            _ if Chain::runs(chain.steps()[0].param).is_some_and(|runs| runs.steps()[0] == chain.steps()[0]) => {
                Some("all elements are the same".into())
            }
            _ => None,
        };
    }
    Some(match &decision.since {
        since if since == id => decision.why.clone(),
        since => format!("kept from {since}: {}", decision.why),
    })
}

fn class_table(classes: &[Class], shared: &[Shared], args: &ShowArgs) -> String {
    let headings = ["~class", "?>variables", ">raw", ">stored", ">ratio", "?>reused", "?>shared", "~chains", "~why"];
    let mut table = Table::new(with_why(&headings, args));
    let shown = if args.all { classes.len() } else { classes.len().min(CLASSES_SHOWN_MAX) };
    for class in &classes[..shown] {
        let coded = class.coded_raw_bytes + class.shared_raw_bytes;
        let stored = class.stored_bytes + class.shared_stored_bytes_estimate;
        let estimated = if class.shared_raw_bytes > 0 { "~" } else { "" };
        let cells = [
            class.key.clone(),
            class.variables.to_string(),
            human_bytes(class.raw_bytes),
            format!("{estimated}{}", human_bytes(stored)),
            if coded == 0 { "-".into() } else { format!("{estimated}{:.3}", ratio(coded, stored)) },
            human_bytes(class.reused_raw_bytes),
            human_bytes(class.shared_raw_bytes),
            class.chains.iter().cloned().collect::<Vec<_>>().join(", "),
            lines(&class.why),
        ];
        table.row(cells.into_iter().take(with_why(&headings, args).len()));
    }
    let mut text = table.render();
    if shown < classes.len() {
        text.push_str(&format!("... and {} smaller classes (--all shows them)\n", classes.len() - shown));
    }
    if classes[..shown].iter().any(|class| class.shared_raw_bytes > 0) {
        text.push_str("~ estimated: each class in a shared segment is charged by its share of the raw bytes\n");
    }
    if !shared.is_empty() {
        text.push_str("\nsegments that several classes share\n");
        let headings = ["~type", "?>segments", ">raw", ">stored", ">ratio", "~chain", "~why"];
        let mut table = Table::new(with_why(&headings, args));
        for one in shared {
            let cells = [
                one.element.clone(),
                one.segments.to_string(),
                human_bytes(one.raw_bytes),
                human_bytes(one.stored_bytes),
                format!("{:.3}", ratio(one.raw_bytes, one.stored_bytes)),
                one.chain.clone(),
                lines(&one.why),
            ];
            table.row(cells.into_iter().take(with_why(&headings, args).len()));
        }
        text.push_str(&table.render());
    }
    text
}

/// The headings. Without `--why`, the last heading, `why`, is left out.
fn with_why<'a, 'b>(headings: &'a [&'b str], args: &ShowArgs) -> &'a [&'b str] {
    &headings[..headings.len() - usize::from(!args.why)]
}

/// Joins the reasons, because different groups may have different reasons.
fn lines(why: &BTreeSet<String>) -> String {
    why.iter().map(String::as_str).collect::<Vec<_>>().join("; ")
}

fn file_table(files: &[File]) -> String {
    let mut table = Table::new(&["~file", ">rank", ">bytes", ">variables", "?BLAKE3"]);
    for file in files {
        table.row([
            file.path.clone(),
            file.rank.to_string(),
            file.bytes.to_string(),
            match file.kind {
                FileKind::Regular => file.variables.to_string(),
                FileKind::Directory => "directory".into(),
                FileKind::SymbolicLink => "link".into(),
                FileKind::Pointer => "pointer".into(),
                FileKind::HardLink(_) => "hard link".into(),
            },
            file.digest[..16].to_owned(),
        ]);
    }
    table.render()
}
