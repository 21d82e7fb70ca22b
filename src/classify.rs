//! Finds the variables of different ranks that have the same meaning.
//!
//! Source: mcrEngine, SC12, section III-A. Two variables are similar if their names agree and if their data type and
//! class (scalar or array) are the same. The numbers of elements of similar variables may differ. The hash key is
//! `Group/Name_Type_Class`, for example `ToyGrp/Temperature_F32LE_Array1D`. Names are compared exactly or after
//! normalising. With normalising, `Grid0000012/Density` and `Grid0000007/Density` are one class.

use crate::header::{ElementType, FileHeader, Role, Shape, VariableHeader};
use crate::units::RawBytes;
use std::borrow::Cow;
use std::collections::HashMap;

/// The rule by which the names of two variables count as equal.
#[derive(Clone, Debug, Default)]
pub enum Naming {
    /// The names are equal byte for byte.
    Exact,
    /// The names are equal after every run of digits is replaced with `#`. This rule is the default.
    #[default]
    Numbers,
    /// The names are equal after every match of each regular expression is replaced, one rule after the other.
    Rules(Vec<(regex::Regex, String)>),
}

impl Naming {
    /// The normalised name. Normalised names are compared byte for byte.
    pub fn normalise<'a>(&self, name: &'a str) -> Cow<'a, str> {
        match self {
            Self::Exact => Cow::Borrowed(name),
            Self::Numbers => {
                if !name.bytes().any(|b| b.is_ascii_digit()) {
                    return Cow::Borrowed(name);
                }
                let mut out = String::with_capacity(name.len());
                push_without_numbers(&mut out, name);
                Cow::Owned(out)
            }
            Self::Rules(rules) => rules.iter().fold(Cow::Borrowed(name), |name, (regex, by)| {
                match regex.replace_all(&name, by.as_str()) {
                    Cow::Borrowed(_) => name,
                    Cow::Owned(replaced) => Cow::Owned(replaced),
                }
            }),
        }
    }
}

/// Appends a name with `#` for every run of digits.
fn push_without_numbers(out: &mut String, name: &str) {
    let mut rest = name;
    while let Some(at) = rest.bytes().position(|b| b.is_ascii_digit()) {
        out.push_str(&rest[..at]);
        out.push('#');
        rest = rest[at..].trim_start_matches(|c: char| c.is_ascii_digit());
    }
    out.push_str(rest);
}

/// A variable of a group, named by its position in the group's list of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VariableRef {
    /// Index in the group's files.
    pub file: u32,
    /// Index in the variables of the file.
    pub variable: u32,
}

impl VariableRef {
    /// The header of the variable. `files` must be the list for which the reference was made.
    pub fn of(self, files: &[FileHeader]) -> &VariableHeader {
        &files[self.file as usize].variables[self.variable as usize]
    }
}

/// Variables of different ranks that are similar enough to be merged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VariableClass {
    /// The hash key of the class, `Group/Name_Type_Class`.
    pub key: Box<str>,
    /// Role of the members in their files.
    pub role: Role,
    /// The common type of the elements.
    pub element: ElementType,
    /// The members in rank order, then by file and by position in the file.
    pub members: Vec<VariableRef>,
    /// Total raw bytes of the members.
    pub raw_bytes: RawBytes,
}

/// Sorts the variables of a group's files into classes, in the order of their first member.
///
/// Each variable takes one hash lookup. A million headers take much less than a second.
pub fn classify(files: &[FileHeader], naming: &Naming) -> Vec<VariableClass> {
    let mut classes: Vec<VariableClass> = Vec::new();
    let mut by_key: HashMap<Box<str>, usize> = HashMap::new();
    let (mut key, mut kind) = (String::new(), None);
    for (f, file) in files.iter().enumerate() {
        for (v, variable) in file.variables.iter().enumerate() {
            let member = VariableRef { file: index(f), variable: index(v) };
            write_key(&mut key, file, variable, naming, &mut kind);
            let class = match by_key.get(key.as_str()) {
                Some(&class) => class,
                None => {
                    by_key.insert(key.as_str().into(), classes.len());
                    classes.push(VariableClass {
                        key: key.as_str().into(),
                        role: variable.role,
                        element: variable.element.clone(),
                        members: Vec::new(),
                        raw_bytes: RawBytes(0),
                    });
                    classes.len() - 1
                }
            };
            classes[class].members.push(member);
            classes[class].raw_bytes += variable.raw_bytes;
        }
    }
    classes
}

/// Indices have 32 bits. The headers of 2^32 files or variables would not fit into memory.
fn index(i: usize) -> u32 {
    u32::try_from(i).expect("fewer than 2^32 headers fit in memory")
}

/// The element type, the number of dimensions, and the end of the hash key that is made from them, such as
/// `_F32LE_Array1D`.
type Kind = (ElementType, usize, String);

/// Writes the hash key of a variable. `kind` is the kind of the previous variable. Most variables have the kind of
/// the previous variable. For such variables, `kind` is used again, because formatting a kind takes longer than the
/// rest of this function.
fn write_key(key: &mut String, file: &FileHeader, variable: &VariableHeader, naming: &Naming, kind: &mut Option<Kind>) {
    key.clear();
    match variable.role {
        Role::Skeleton => key.push_str("#skeleton"),
        Role::WholeFile => {
            key.push_str("#file/");
            key.push_str(&naming.normalise(&String::from_utf8_lossy(file.path.name())));
        }
        Role::Array | Role::StoredChunks => {
            let name = variable.path.trim_start_matches('/');
            match naming {
                Naming::Numbers => push_without_numbers(key, name),
                Naming::Exact | Naming::Rules(_) => key.push_str(&naming.normalise(name)),
            }
            if variable.role == Role::StoredChunks {
                key.push_str("#stored");
            }
        }
    }
    let dimensions = if variable.role == Role::Array { variable.shape.0.len() } else { 1 };
    match kind {
        Some((element, n, text)) if (&*element, *n) == (&variable.element, dimensions) => key.push_str(text),
        _ => {
            let class: &dyn std::fmt::Display = match variable.role {
                Role::Array => &variable.shape,
                Role::Skeleton | Role::StoredChunks | Role::WholeFile => &Shape([0].into()),
            };
            let text = format!("_{}_{class}", variable.element);
            key.push_str(&text);
            *kind = Some((variable.element.clone(), dimensions, text));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Digest, FilePath, Rank};

    fn variable(path: &str, element: ElementType, shape: &[u64]) -> VariableHeader {
        let raw_bytes = RawBytes(shape.iter().product::<u64>() * u64::from(element.width()));
        VariableHeader {
            role: Role::Array,
            path: path.into(),
            element,
            shape: Shape(shape.into()),
            chunk: Default::default(),
            raw_bytes,
            digest: Digest([0; 32]),
            filters: [].into(),
            extents: [].into(),
        }
    }

    fn file(rank: u32, variables: Vec<VariableHeader>) -> FileHeader {
        FileHeader {
            path: FilePath::new(format!("f.{rank}").into_bytes()).expect("valid"),
            rank: Rank(rank),
            bytes: 0,
            kind: Default::default(),
            mode: 0,
            modified_ns: 0,
            digest: Digest([0; 32]),
            variables,
        }
    }

    fn keys(files: &[FileHeader], naming: &Naming) -> Vec<(String, usize)> {
        classify(files, naming).into_iter().map(|c| (c.key.into(), c.members.len())).collect()
    }

    #[test]
    fn the_hash_key_is_the_papers() {
        let files = [file(0, vec![variable("/ToyGrp/Temperature", ElementType::F32, &[7])])];
        assert_eq!(keys(&files, &Naming::default()), [("ToyGrp/Temperature_F32LE_Array1D".into(), 1)]);
    }

    #[test]
    fn every_run_of_digits_is_one_sign_and_all_else_stays() {
        for (name, expected) in
            [("", ""), ("7", "#"), ("a12b3", "a#b#"), ("\u{fc}1\u{661}9", "\u{fc}#\u{661}#"), ("x-", "x-")]
        {
            assert_eq!(Naming::Numbers.normalise(name), expected, "{name:?}");
            let files = [file(0, vec![variable(name, ElementType::F32, &[7])])];
            assert_eq!(keys(&files, &Naming::Numbers)[0].0, format!("{expected}_F32LE_Array1D"));
        }
    }

    #[test]
    fn lengths_may_differ_but_type_and_class_may_not() {
        let files = [
            file(0, vec![variable("/a", ElementType::F64, &[3]), variable("/a2", ElementType::F64, &[])]),
            file(1, vec![variable("/a", ElementType::F64, &[9]), variable("/a", ElementType::F32, &[9])]),
            file(2, vec![variable("/a", ElementType::F64, &[3, 3])]),
        ];
        let found = keys(&files, &Naming::Exact);
        let expected = [("a_F64LE_Array1D", 2), ("a2_F64LE_Scalar", 1), ("a_F32LE_Array1D", 1), ("a_F64LE_Array2D", 1)];
        assert_eq!(found, expected.map(|(key, n)| (key.to_owned(), n)));
    }

    #[test]
    fn grids_that_differ_by_number_are_one_class_unless_names_are_exact() {
        let files = [file(
            0,
            vec![
                variable("/Grid0012/Density", ElementType::F64, &[4]),
                variable("/Grid7/Density", ElementType::F64, &[4]),
            ],
        )];
        assert_eq!(keys(&files, &Naming::Numbers), [("Grid#/Density_F64LE_Array1D".into(), 2)]);
        assert_eq!(keys(&files, &Naming::Exact).len(), 2);
        let rules = Naming::Rules(vec![(regex::Regex::new("^Grid[0-9]+/").expect("valid"), "G/".into())]);
        assert_eq!(keys(&files, &rules), [("G/Density_F64LE_Array1D".into(), 2)]);
    }
}
