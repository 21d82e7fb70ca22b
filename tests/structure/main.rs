//! Tests that the files of a crate do not import each other in a circle. Without circles, a reader can read each file
//! after the files that it imports.
//!
//! The imports are read from the `use` lines and the paths of the source text. A re-export (`pub use`) is followed to
//! the file that defines the name, and does not count as an import. Imports in test code do not count.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The sources of each crate.
const CRATES: [&str; 7] = ["src", "proto/src", "cnc/src", "anc/src", "simulation/src", "cli/src", "benches/mpib/src"];

/// Circles that still exist. Add no circle to this list. Break a new circle by moving the code that both files need
/// to a third file. Remove a circle from this list when it is broken.
const ALLOWED: &[&[&str]] = &[
    // The codecs `columns` and `mixed` divide a segment into parts, and encode each part with a chain of codecs.
    &[
        "src/codec/array_to_bytes/columns.rs",
        "src/codec/array_to_bytes/mixed/mod.rs",
        "src/codec/candidates.rs",
        "src/codec/chain.rs",
        "src/codec/decide.rs",
        "src/codec/lzma_trial.rs",
        "src/codec/table.rs",
        "src/codec/trial.rs",
    ],
];

/// The path of a module within its crate, such as `["hub", "gather"]`.
type Module = Vec<String>;

/// A source file of a crate.
struct Source {
    /// The path relative to the repository.
    name: String,
    module: Module,
    /// The source text without comments, strings and test code.
    text: String,
    /// The imports of the file's `use` lines, with the local name of each import.
    uses: Vec<Import>,
}

struct Import {
    path: Vec<String>,
    name: String,
    is_public: bool,
}

#[test]
fn no_files_of_a_crate_import_from_each_other() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let found: Vec<Vec<String>> = CRATES.iter().flat_map(|dir| circles(&edges(&sources(root, dir)))).collect();
    let is_within = |circle: &[String], allowed: &[&str]| circle.iter().all(|file| allowed.contains(&file.as_str()));
    let new: Vec<_> = found.iter().filter(|circle| !ALLOWED.iter().any(|allowed| is_within(circle, allowed))).collect();
    assert!(
        new.is_empty(),
        "these files import from each other; move the code that both need to a third file: {new:#?}"
    );
    let is_gone = |allowed: &&&[&str]| !found.iter().any(|circle| is_within(circle, allowed));
    let gone: Vec<_> = ALLOWED.iter().filter(is_gone).collect();
    assert!(gone.is_empty(), "these circles do not exist any more; remove them from ALLOWED: {gone:#?}");
}

#[test]
fn imports_are_read_as_the_compiler_reads_them() {
    let file = |name: &str, module: &[&str], text: &str| Source::new(name.into(), strings(module), text);
    let sources = [
        file("lib.rs", &[], "pub mod a;\npub mod b;\nmod c;"),
        file("a.rs", &["a"], "mod x;\npub use x::One;\nuse crate::b::{self, Two as Other};\nfn f() { crate::c::g(); }"),
        file(
            "a/x.rs",
            &["a", "x"],
            "// use crate::c::g;\npub struct One;\n#[cfg(test)]\nmod tests {\n    use crate::c::g;\n}",
        ),
        file("b.rs", &["b"], "use crate::a::One;\npub struct Two;"),
        file("c.rs", &["c"], "use super::b::Two;\npub fn g() {}"),
    ];
    let edges = edges(&sources);
    let of = |name: &str| edges[name].iter().map(String::as_str).collect::<Vec<_>>();
    assert_eq!(of("a.rs"), ["b.rs", "c.rs"]);
    assert_eq!(of("b.rs"), ["a/x.rs"], "the import counts for the file that defines the re-exported name");
    assert_eq!(of("c.rs"), ["b.rs"]);
    assert!(of("a/x.rs").is_empty(), "imports in comments and tests do not count");
    assert!(circles(&edges).is_empty());
    let round = BTreeMap::from([("p", "q"), ("q", "r"), ("r", "p"), ("s", "p")]);
    let round = round.into_iter().map(|(from, to)| (from.to_owned(), BTreeSet::from([to.to_owned()]))).collect();
    assert_eq!(circles(&round), [["p", "q", "r"]]);
}

fn strings(all: &[&str]) -> Vec<String> {
    all.iter().map(|one| (*one).to_owned()).collect()
}

/// The source files of a crate, without files of tests.
fn sources(root: &Path, dir: &str) -> Vec<Source> {
    let mut paths = Vec::new();
    collect(&root.join(dir), &mut paths);
    let source = |path: &PathBuf| {
        let below = path.strip_prefix(root.join(dir)).expect("below the sources");
        let mut module: Module = below.iter().map(|part| part.to_string_lossy().into_owned()).collect();
        let last = module.pop().expect("a file name");
        match last.trim_end_matches(".rs") {
            "mod" => {}
            "lib" | "main" if module.is_empty() => {}
            stem => module.push(stem.to_owned()),
        }
        let text = fs::read_to_string(path).expect("readable");
        let name = path.strip_prefix(root).expect("below the root").to_string_lossy().into_owned();
        Source::new(name, module, &text)
    };
    let is_test = |source: &Source| source.module.iter().any(|part| part == "tests" || part.ends_with("_tests"));
    paths.iter().map(source).filter(|source| !is_test(source)).collect()
}

fn collect(dir: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("a directory") {
        let path = entry.expect("readable").path();
        if path.is_dir() {
            collect(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(path);
        }
    }
}

impl Source {
    fn new(name: String, module: Module, text: &str) -> Self {
        let is_tests = |text: &str| text.lines().next().is_some_and(|line| line.ends_with("mod tests {"));
        let end = text.match_indices("\n#[cfg(test)]\n").find(|(at, mark)| is_tests(&text[at + mark.len()..]));
        let text = end.map_or(text, |(at, _)| &text[..at]);
        let text: String = text.lines().map(|line| format!("{}\n", without_comment(line))).collect();
        let (mut uses, mut rest) = (Vec::new(), String::new());
        let mut statement: Option<String> = None;
        for line in text.lines() {
            let begin = line.trim_start();
            let is_use = begin.starts_with("use ") || begin.starts_with("pub") && begin.contains(" use ");
            match &mut statement {
                Some(open) => open.push_str(line),
                None if is_use => statement = Some(line.to_owned()),
                None => rest.push_str(&format!("{line}\n")),
            }
            if let Some(whole) = statement.take_if(|open| open.contains(';')) {
                let is_public = whole.trim_start().starts_with("pub");
                let tree = whole.split_once("use ").map_or("", |(_, tree)| tree.trim().trim_end_matches(';'));
                for path in expand(tree) {
                    uses.push(Import::new(&path, is_public));
                }
            }
        }
        Self { name, module, text: rest, uses }
    }

    /// Whether this file defines an item of this name.
    fn defines(&self, name: &str) -> bool {
        let kinds = ["fn", "struct", "enum", "trait", "type", "const", "static", "union"];
        kinds.iter().any(|kind| {
            let item = format!("{kind} {name}");
            self.text.match_indices(&item).any(|(at, _)| {
                let after = self.text[at + item.len()..].chars().next();
                after.is_none_or(|c| !c.is_alphanumeric() && c != '_')
            })
        })
    }

    /// The paths in the code of this file that begin with `crate::` or `super::`.
    fn inline_paths(&self) -> Vec<Vec<String>> {
        let mut paths = Vec::new();
        for begin in ["crate::", "super::"] {
            for (at, _) in self.text.match_indices(begin) {
                if self.text[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':' || c == '$') {
                    continue;
                }
                let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
                let path: String = self.text[at..].chars().take_while(|c| is_part(*c)).collect();
                paths.push(path.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect());
            }
        }
        paths
    }
}

impl Import {
    fn new(text: &str, is_public: bool) -> Self {
        let (path, alias) = text.split_once(" as ").unwrap_or((text, ""));
        let mut path: Vec<String> = path.split("::").map(|part| part.trim().to_owned()).collect();
        path.pop_if(|last| last == "self");
        let name = match alias.trim() {
            "" => path.last().cloned().unwrap_or_default(),
            alias => alias.to_owned(),
        };
        Self { path, name, is_public }
    }
}

/// A line of code without its comment and without the contents of its strings.
fn without_comment(line: &str) -> String {
    let (mut kept, mut is_string, mut before) = (String::new(), false, ' ');
    for (at, c) in line.char_indices() {
        match c {
            '"' if before != '\\' && before != '\'' => is_string = !is_string,
            '/' if !is_string && line[at..].starts_with("//") => break,
            _ if is_string => {}
            _ => kept.push(c),
        }
        before = c;
    }
    kept
}

/// Expands `a::{b, c::{d, self}}` to `a::b`, `a::c::d`, `a::c::self`.
fn expand(tree: &str) -> Vec<String> {
    let Some(open) = tree.find('{') else { return vec![tree.trim().to_owned()] };
    let inner = &tree[open + 1..tree.rfind('}').unwrap_or(tree.len())];
    let (mut parts, mut depth, mut begin) = (Vec::new(), 0, 0);
    for (at, c) in inner.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&inner[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&inner[begin..]);
    let whole = |part: &str| expand(part.trim()).into_iter().map(|end| format!("{}{end}", tree[..open].trim()));
    parts.into_iter().filter(|part| !part.trim().is_empty()).flat_map(whole).collect()
}

/// Maps each file to the files that it imports.
fn edges(sources: &[Source]) -> BTreeMap<String, BTreeSet<String>> {
    let by_module: BTreeMap<&Module, &Source> = sources.iter().map(|source| (&source.module, source)).collect();
    let edges = |source: &Source| {
        let imports = source.uses.iter().filter(|import| !import.is_public).map(|import| &import.path);
        let inline = source.inline_paths();
        let targets = imports.chain(&inline).flat_map(|path| resolve(&by_module, &source.module, path, 0));
        let targets: BTreeSet<String> = targets.filter(|target| *target != source.name).collect();
        (source.name.clone(), targets)
    };
    sources.iter().map(edges).collect()
}

/// Maximum length of a chain of re-exports that is followed.
const DEPTH_MAX: usize = 8;

/// Finds the files that define the item of a path in a module. Empty if the item is in another crate.
fn resolve(all: &BTreeMap<&Module, &Source>, from: &Module, path: &[String], depth: usize) -> Vec<String> {
    let mut at = from.clone();
    let mut rest = path;
    match rest.first().map(String::as_str) {
        Some("crate") => {
            at.clear();
            rest = &rest[1..];
        }
        Some("self") => rest = &rest[1..],
        Some("super") => {
            while rest.first().is_some_and(|part| part == "super") {
                at.pop();
                rest = &rest[1..];
            }
        }
        // The name is a module below this module. Any other name is the name of another crate.
        Some(child) if all.contains_key(&[at.as_slice(), &[child.to_owned()]].concat()) => {}
        _ => return Vec::new(),
    }
    while let Some(part) = rest.first() {
        at.push(part.clone());
        if !all.contains_key(&at) {
            at.pop();
            break;
        }
        rest = &rest[1..];
    }
    let Some(source) = all.get(&at) else { return Vec::new() };
    let Some(name) = rest.first().filter(|name| *name != "*") else { return vec![source.name.clone()] };
    if source.defines(name) || depth == DEPTH_MAX {
        return vec![source.name.clone()];
    }
    let exports = source.uses.iter().filter(|import| import.is_public);
    for import in exports.clone().filter(|import| import.name == *name) {
        let mut path = import.path.clone();
        path.extend_from_slice(&rest[1..]);
        let found = resolve(all, &at, &path, depth + 1);
        if !found.is_empty() {
            return found;
        }
    }
    for import in exports.filter(|import| import.name == "*") {
        let path = [&import.path[..import.path.len() - 1], rest].concat();
        let found = resolve(all, &at, &path, depth + 1);
        let is_there = |file: &String| all.values().any(|source| source.name == *file && source.defines(name));
        if found.iter().any(is_there) {
            return found;
        }
    }
    vec![source.name.clone()]
}

/// The groups of files in which each file imports every other file, directly or through other files.
fn circles(edges: &BTreeMap<String, BTreeSet<String>>) -> Vec<Vec<String>> {
    let reached = |from: &String| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![from]);
        while let Some(file) = open.pop() {
            for next in edges.get(file).into_iter().flatten() {
                if seen.insert(next) {
                    open.push(next);
                }
            }
        }
        seen
    };
    let reach: BTreeMap<&String, BTreeSet<&String>> = edges.keys().map(|file| (file, reached(file))).collect();
    let mut found: Vec<Vec<String>> = Vec::new();
    for (file, others) in &reach {
        let circle: Vec<String> =
            others.iter().filter(|other| reach[**other].contains(*file)).map(|other| (*other).clone()).collect();
        if !circle.is_empty() && !found.contains(&circle) {
            found.push(circle);
        }
    }
    found
}
