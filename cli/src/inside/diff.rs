//! `mcr diff`: the files and classes of two checkpoints that differ, and by how much.

use super::args::DiffArgs;
use super::change::Change;
use super::extra::extra_files;
use super::ls::name_of;
use super::open::Opened;
use super::sides::{FilePlace, Paired, Side, paired};
use crate::output::{Table, counted, print, print_json};
use mcrengine::header::{ElementType, FileHeader, FileKind, Role, VariableHeader};
use mcrengine::ids::CheckpointId;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use tempfile::TempDir;

/// Number of bytes that are compared at once.
const STEP_BYTES: u64 = 1 << 20;

/// Two files that belong together.
#[derive(serde::Serialize)]
struct Pair {
    a: String,
    b: String,
    rank: u32,
    same: bool,
    changed_variables: u64,
    #[serde(skip)]
    at: (FilePlace, FilePlace),
}

/// The variables of one class.
#[derive(Default, serde::Serialize)]
struct Class {
    key: String,
    element: String,
    variables: u64,
    changed_variables: u64,
    /// Variables of only one side, or with different types or lengths.
    not_comparable: u64,
    /// Changed variables that have the same elements in another order.
    reordered: u64,
    #[serde(flatten)]
    change: Change,
}

pub fn run(args: DiffArgs) -> anyhow::Result<ExitCode> {
    let opened = Opened::whole(&args.store, &args.a)?;
    let share = (args.budget_mib << 20) / 2;
    let mut a = Side::of_checkpoint(&opened, share)?;
    let (name_b, mut b) = match args.b.contains('/') {
        true => (args.b.clone(), Side::of_directory(Path::new(&args.b), &opened, &a)?),
        false => {
            let asked: CheckpointId = args.b.parse()?;
            let other = Opened::whole(&args.store, &asked)?;
            (other.state.id.to_string(), Side::of_checkpoint(&other, share)?)
        }
    };
    // The entries of directories have no bytes. Links are not compared with a directory.
    let is_compared = |header: &FileHeader| match b {
        Side::Directory(..) => header.kind.is_file(),
        Side::Stored(_) => header.kind != FileKind::Directory,
    };
    let compared = |side: &Side| -> Vec<_> {
        side.places().into_iter().filter(|place| is_compared(side.header(*place))).collect()
    };
    let Paired { both, only_a, only_b } = paired((&a, &compared(&a)), (&b, &compared(&b)));
    let (mut pairs, mut classes): (Vec<Pair>, BTreeMap<String, Class>) = Default::default();
    for (at_a, at_b) in both {
        let (of_a, of_b) = (a.header(at_a), b.header(at_b));
        pairs.push(Pair {
            a: of_a.path.to_string(),
            b: of_b.path.to_string(),
            rank: of_a.rank.0,
            same: (of_a.digest, of_a.bytes) == (of_b.digest, of_b.bytes) && is_same_kind(of_a.kind, of_b.kind),
            changed_variables: 0,
            at: (a.content_of(at_a), b.content_of(at_b)),
        });
    }
    let mut decoding = Decoding { most: share / 4, scratch: None };
    compare_all(&mut pairs, &mut classes, &mut a, &mut b, &mut decoding)?;
    let names = |side: &Side, places: &[FilePlace]| -> Vec<String> {
        places.iter().map(|place| side.header(*place).path.to_string()).collect()
    };
    let mut names_b = names(&b, &only_b);
    if args.b.contains('/') {
        names_b.extend(extra_files(Path::new(&args.b), &a)?);
    }
    let classes: Vec<Class> = classes.into_values().collect();
    let report = Report {
        a: opened.state.id.to_string(),
        b: name_b,
        same: only_a.is_empty() && names_b.is_empty() && pairs.iter().all(|pair| pair.same),
        only_in_a: names(&a, &only_a),
        only_in_b: names_b,
        files: pairs,
        classes,
    };
    if args.json { print_json(&report) } else { print(&report.text()) }?;
    Ok(ExitCode::SUCCESS)
}

/// Whether two entries are of one kind. A hard link is a file like its other name.
fn is_same_kind(a: FileKind, b: FileKind) -> bool {
    a == b || (a.is_file() && b.is_file())
}

/// Compares all variables of all pairs. Neighbouring ranks are compared one after the other, because a segment has
/// the same variable of many ranks.
fn compare_all(
    pairs: &mut [Pair],
    classes: &mut BTreeMap<String, Class>,
    a: &mut Side,
    b: &mut Side,
    decoding: &mut Decoding,
) -> anyhow::Result<()> {
    /// Variables of both sides with the same name. Equal names are numbered.
    type Names = BTreeMap<(String, u32), [Option<u32>; 2]>;
    let mut order: Vec<(usize, u32, usize, [Option<u32>; 2])> = Vec::new();
    for (number, pair) in pairs.iter().enumerate() {
        let mut names = Names::new();
        for (side, header) in [a.header(pair.at.0), b.header(pair.at.1)].into_iter().enumerate() {
            let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
            for (variable, of) in (0..).zip(&header.variables) {
                let count = counts.entry(name_of(of)).or_default();
                names.entry((name_of(of).to_owned(), *count)).or_default()[side] = Some(variable);
                *count += 1;
            }
        }
        let place = |both: &[Option<u32>; 2]| both[0].or(both[1]).unwrap_or(0);
        order.extend(names.into_values().map(|both| (pair.at.0.group, place(&both), number, both)));
    }
    order.sort_unstable();
    for (_, _, number, both) in order {
        let pair = &mut pairs[number];
        let key = match both {
            [Some(variable), _] => a.class(pair.at.0, variable),
            [None, variable] => b.class(pair.at.1, variable.unwrap_or(0)),
        };
        let variable = |header: &FileHeader, variable: Option<u32>| {
            variable.and_then(|variable| header.variables.get(variable as usize).cloned())
        };
        let (of_a, of_b) = (variable(a.header(pair.at.0), both[0]), variable(b.header(pair.at.1), both[1]));
        let Some(any) = of_a.as_ref().or(of_b.as_ref()) else { continue };
        let key = if key.is_empty() { name_of(any).to_owned() } else { key.to_owned() };
        let class = classes.entry(key.clone()).or_default();
        class.key = key;
        if class.element.is_empty() {
            class.element = any.element.to_string();
        }
        class.variables += 1;
        let (Some(of_a), Some(of_b)) = (&of_a, &of_b) else {
            if pair.same {
                continue; // the bytes are equal, although the two sides divide the file in different ways
            }
            class.not_comparable += 1;
            pair.changed_variables += 1;
            continue;
        };
        let mut change = Change::default();
        let at = [both[0].unwrap_or(0), both[1].unwrap_or(0)];
        let has_stored_chunks = [of_a, of_b].iter().any(|of| of.role == Role::StoredChunks);
        let decoded = match has_stored_chunks && !pair.same {
            true => decoding.compare(pair.at, at, a, b)?,
            false => None,
        };
        if pair.same && !has_stored_chunks {
            change.elements = of_a.raw_bytes.0 / u64::from(of_a.element.width());
        } else if pair.same {
            // The number of elements is not known without decoding.
        } else if let Some((element, found)) = decoded {
            (class.element, change) = (element.to_string(), found);
        } else if is_comparable(of_a, of_b) {
            change = compare(of_a, pair.at, at, a, b)?;
        } else {
            class.not_comparable += 1;
            pair.changed_variables += 1;
        }
        class.changed_variables += u64::from(change.changed > 0);
        class.reordered += u64::from(change.is_reordered());
        pair.changed_variables += u64::from(change.changed > 0);
        class.change.add(&change);
    }
    Ok(())
}

/// How datasets whose chunks are stored as they are in the file are decoded.
struct Decoding {
    /// Maximum length of a dataset in bytes. A longer dataset is compared as it is stored.
    most: u64,
    /// The directory of temporary files. `None` until the first file is needed.
    scratch: Option<TempDir>,
}

impl Decoding {
    /// Compares the numbers of two datasets. `None` if a dataset cannot be decoded, or if types or shapes differ.
    fn compare(
        &mut self,
        (at_a, at_b): (FilePlace, FilePlace),
        [variable_a, variable_b]: [u32; 2],
        a: &mut Side,
        b: &mut Side,
    ) -> anyhow::Result<Option<(ElementType, Change)>> {
        let scratch = match &mut self.scratch {
            Some(scratch) => scratch,
            none => none.insert(tempfile::tempdir()?),
        };
        let scratch = scratch.path().join("sparse.h5");
        let Some(of_a) = a.decoded(at_a, variable_a, self.most, &scratch)? else { return Ok(None) };
        let Some(of_b) = b.decoded(at_b, variable_b, self.most, &scratch)? else { return Ok(None) };
        let (element, mut change) = (of_a.numbers.element(), Change::default());
        if (&of_a.shape, &element) != (&of_b.shape, &of_b.numbers.element()) {
            return Ok(None);
        }
        change.compare(&element, &of_a.numbers.to_le_bytes(), &of_b.numbers.to_le_bytes());
        Ok(Some((element, change)))
    }
}

fn is_comparable(a: &VariableHeader, b: &VariableHeader) -> bool {
    (a.role, &a.element, &a.shape, a.raw_bytes) == (b.role, &b.element, &b.shape, b.raw_bytes)
}

fn compare(
    header: &VariableHeader,
    (at_a, at_b): (FilePlace, FilePlace),
    [variable_a, variable_b]: [u32; 2],
    a: &mut Side,
    b: &mut Side,
) -> anyhow::Result<Change> {
    let width = u64::from(header.element.width());
    let step = (STEP_BYTES / width * width).max(width);
    let (mut change, mut done) = (Change::default(), 0);
    while done < header.raw_bytes.0 {
        let mut runs = [(); 2].map(|()| vec![0; step.min(header.raw_bytes.0 - done) as usize]);
        a.read(at_a, variable_a, done, &mut runs[0])?;
        b.read(at_b, variable_b, done, &mut runs[1])?;
        change.compare(&header.element, &runs[0], &runs[1]);
        done += runs[0].len() as u64;
    }
    Ok(change)
}

#[derive(serde::Serialize)]
struct Report {
    a: String,
    b: String,
    same: bool,
    only_in_a: Vec<String>,
    only_in_b: Vec<String>,
    files: Vec<Pair>,
    classes: Vec<Class>,
}

impl Report {
    fn text(&self) -> String {
        let changed = self.files.iter().filter(|pair| !pair.same);
        let (same, count) = (self.files.iter().filter(|pair| pair.same).count(), changed.clone().count());
        let are = |n: usize| if n == 1 { "is" } else { "are" };
        let of_same = counted(same as u64, "file");
        let mut text =
            format!("{} and {}: {of_same} {} the same, {count} {} changed\n", self.a, self.b, are(same), are(count));
        for (name, files) in [(&self.a, &self.only_in_a), (&self.b, &self.only_in_b)] {
            if !files.is_empty() {
                let of_one = counted(files.len() as u64, "file");
                text.push_str(&format!("{of_one} {} only in {name}\n", are(files.len())));
            }
        }
        if count > 0 {
            let mut table = Table::new(&[">rank", "~changed file", "~compared with", ">changed variables"]);
            for pair in changed {
                let with = if pair.b == pair.a { "the same path".to_owned() } else { pair.b.clone() };
                table.row([pair.rank.to_string(), pair.a.clone(), with, pair.changed_variables.to_string()]);
            }
            text.push_str(&format!("\n{}", table.render()));
        }
        let is_changed = |class: &&Class| class.changed_variables + class.not_comparable > 0;
        if self.classes.iter().any(|class| is_changed(&class)) {
            let mut table = Table::new(&[
                "~changed class",
                ">variables",
                ">of",
                ">elements",
                ">of",
                ">largest difference",
                "?>largest relative",
            ]);
            for class in self.classes.iter().filter(is_changed) {
                let number = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.6e}"));
                table.row([
                    class.key.clone(),
                    (class.changed_variables + class.not_comparable).to_string(),
                    class.variables.to_string(),
                    class.change.changed.to_string(),
                    class.change.elements.to_string(),
                    number(class.change.largest_absolute),
                    number(class.change.largest_relative),
                ]);
            }
            text.push_str(&format!("\n{}", table.render()));
        }
        let reordered: u64 = self.classes.iter().map(|class| class.reordered).sum();
        if reordered > 0 {
            text.push_str(&format!(
                "{reordered} of the changed variables {} the same elements in another order: the chunks of the two \
                 files may have different dimensions\n",
                if reordered == 1 { "has" } else { "have" }
            ));
        }
        for (name, files) in [(&self.a, &self.only_in_a), (&self.b, &self.only_in_b)] {
            files.iter().for_each(|file| text.push_str(&format!("only in {name}: {file}\n")));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_file_has_the_singular() {
        let at = FilePlace { group: 0, file: 0 };
        let (a, b) = ("one.0".to_owned(), "two.0".to_owned());
        let pair = Pair { a, b, rank: 0, same: true, changed_variables: 0, at: (at, at) };
        let (only_in_a, only_in_b) = (Vec::new(), vec!["x".to_owned()]);
        let (a, b, files) = ("one".to_owned(), "two".to_owned(), vec![pair]);
        let report = Report { a, b, same: false, only_in_a, only_in_b, files, classes: Vec::new() };
        let expected = "one and two: 1 file is the same, 0 are changed\n1 file is only in two\nonly in two: x\n";
        assert_eq!(report.text(), expected);
    }
}
