//! The text of a manifest: the fields, and functions that write and read the text.

use super::files::{FileTotals, Files};
use crate::codec::Decision;
use crate::container::{ContainerRef, checkpoint_dir, container_name};
use crate::error::ReadError;
use crate::header::FileKind;
use crate::ids::{CheckpointId, Digest, FilePath, GroupId, Grouping, JobId, Rank};
use crate::plan::Scheme;
use crate::store::{Store, StoreError};
use crate::units::{RawBytes, StoredBytes};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The version of manifests that this build writes and reads.
pub const MANIFEST_VERSION: u32 = 1;
/// Maximum length of a manifest, in bytes. A manifest of this length has room for a million files.
pub const MANIFEST_BYTES_MAX: u64 = 256 << 20;
/// Name of the mark of a pruned checkpoint. The directory of a pruned checkpoint holds only files to which kept
/// checkpoints refer.
pub(crate) const PRUNED: &str = "pruned";
const MANIFEST_SUFFIX: &str = ".manifest";

/// The manifest of one committed group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest<Files = Vec<ManifestFile>> {
    /// Name of the job.
    pub job: JobId,
    /// Name of the checkpoint.
    pub checkpoint: CheckpointId,
    /// Number of the incarnation of the job that saved the group; 0 if the job had no incarnation. Manifests of two
    /// incarnations never form one checkpoint.
    pub incarnation: u32,
    /// Number of ranks of the job.
    pub ranks: u32,
    /// Number of groups of the checkpoint.
    pub groups: u32,
    /// Number of ranks in each group. The last group may have fewer ranks.
    pub group_size: u32,
    /// Number of this group.
    pub group: GroupId,
    /// The first rank of this group.
    pub first_rank: Rank,
    /// Number of ranks in this group.
    pub rank_count: u32,
    /// How the variables were merged.
    pub scheme: Scheme,
    /// The compression profile by which codecs were chosen.
    pub profile: String,
    /// Time at which the application wrote the newest of the files, in milliseconds since 1970, by the clock of the
    /// node of the application. This time determines the order of the checkpoints of an incarnation.
    pub written_unix_ms: i64,
    /// Time at which the last of the group's ranks wrote its first files of this incarnation, in milliseconds since
    /// 1970. `None` if an agent had not watched a rank from the begin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_unix_ms: Option<i64>,
    /// What is uncertain about the files of the checkpoint; `None` if there is no doubt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub doubt: Option<Doubt>,
    /// Time at which the manifest was written, just before the commit, in milliseconds since 1970, by the clock of the
    /// aggregator.
    pub created_unix_ms: u64,
    /// Time from the start of the flush until all segments were written, in milliseconds.
    pub elapsed_ms: u64,
    /// Raw bytes of all variables of the group.
    pub raw_bytes: RawBytes,
    /// Length of the container.
    pub stored_bytes: StoredBytes,
    /// The container, which is in the same directory as this manifest.
    pub container: ManifestContainer,
    /// Containers of older checkpoints that this container needs.
    pub references: Vec<ContainerRef>,
    /// Length and use of each container in `references`, in the same order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub referred: Vec<Referred>,
    /// Number of consecutive checkpoints, ending with this checkpoint, that have segments coded against older
    /// segments.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub in_a_row: u32,
    /// The codecs that were chosen for the largest classes, with the reasons; at most 64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub decisions: Vec<Decision>,
    /// The files of the group. The type is [`FileTotals`] instead of a list if only the number and the total length
    /// of the files are needed.
    pub files: Files,
}

/// Length and use of an older container to which a manifest refers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Referred {
    /// Length of the container when it was committed; 0 if the length is not known.
    pub bytes: u64,
    /// Number of consecutive checkpoints, ending with this checkpoint, that refer to the container.
    pub dependents: u32,
}

/// What is uncertain about the files of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Doubt {
    /// What is uncertain.
    pub about: About,
    /// The reason, for people.
    pub why: String,
}

/// What a doubt concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum About {
    /// Whether the files are of one step.
    Step,
    /// Whether the number of ranks is right.
    Ranks,
    /// Whether all files are there, and whole. A value that this build does not know counts as this value.
    #[serde(other)]
    Files,
}

impl Doubt {
    /// A doubt whether the files are of one step.
    pub fn of_step(why: String) -> Self {
        Self { about: About::Step, why }
    }

    /// A doubt whether the number of ranks is right.
    pub fn of_ranks(why: String) -> Self {
        Self { about: About::Ranks, why }
    }

    /// A doubt whether all files are there, and whole.
    pub fn of_files(why: String) -> Self {
        Self { about: About::Files, why }
    }
}

/// An older container to which the next checkpoint may refer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownContainer {
    /// The container.
    pub container: ContainerRef,
    /// Length of the container when it was committed; 0 if the length is not known.
    pub bytes: u64,
    /// Number of consecutive checkpoints that already refer to the container.
    pub dependents: u32,
}

impl Manifest {
    /// Whether no doubt concerns the number of ranks, so that the next checkpoint may rely on this number.
    pub fn has_sure_ranks(&self) -> bool {
        self.doubt.as_ref().is_none_or(|doubt| doubt.about != About::Ranks)
    }

    /// The containers to which the next checkpoint of the group may refer: the container of this manifest, then the
    /// containers in `references`.
    pub fn known_containers(&self) -> Vec<KnownContainer> {
        let own = ContainerRef {
            checkpoint: self.checkpoint.clone(),
            group: self.group,
            digest: self.container.digest,
            index_digest: self.container.index_digest,
        };
        let own = KnownContainer { container: own, bytes: self.container.bytes, dependents: 0 };
        let older = self.references.iter().enumerate().map(|(n, container)| {
            let Referred { bytes, dependents } = self.referred.get(n).copied().unwrap_or_default();
            KnownContainer { container: container.clone(), bytes, dependents: dependents.max(1) }
        });
        [own].into_iter().chain(older).collect()
    }

    /// Total length of the group's files, in bytes.
    pub fn file_bytes(&self) -> u64 {
        self.files.iter().fold(0, |sum, file| file.bytes.saturating_add(sum))
    }
}

/// The fields of a manifest that describe its container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestContainer {
    /// Name of the container's file.
    pub name: String,
    /// Length of the container, in bytes.
    pub bytes: u64,
    /// BLAKE3 of the container's frame. The frame is all bytes of the container except the stored bytes of the
    /// segments, and includes the checksums of these stored bytes.
    #[serde(with = "hex")]
    pub digest: Digest,
    /// BLAKE3 of the container's stored index.
    #[serde(with = "hex")]
    pub index_digest: Digest,
}

/// The entry of one file in a manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestFile {
    /// Path below the watched directory. In the text, a byte that is not UTF-8 is `\xNN`, and a backslash is doubled.
    #[serde(with = "escaped")]
    pub path: FilePath,
    /// The rank that wrote the file.
    pub rank: Rank,
    /// Length of the file, in bytes.
    pub bytes: u64,
    /// Kind of the file; left out of the text for a regular file.
    #[serde(default, skip_serializing_if = "FileKind::is_regular")]
    pub kind: FileKind,
    /// Time of last modification, in nanoseconds since 1970.
    pub modified_ns: i64,
    /// BLAKE3 of the file.
    #[serde(with = "hex")]
    pub digest: Digest,
}

impl Files for Vec<ManifestFile> {
    fn totals(&self) -> FileTotals {
        let mut totals = FileTotals::default();
        self.iter().for_each(|file| totals.add(file.rank.0, file.bytes, file.kind));
        totals
    }
}

/// The place of a checkpoint in the order of the checkpoints of its job. Places are compared by incarnation, then by
/// the time at which the application wrote the checkpoint. Checkpoints with equal places are ordered by name. The
/// order of commits does not matter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Place {
    /// Number of the incarnation.
    pub incarnation: u32,
    /// Time at which the application wrote the newest file, in milliseconds since 1970.
    pub written_unix_ms: i64,
}

fn is_nothing(count: &u32) -> bool {
    *count == 0
}

/// The name of a group's manifest in the directory of its checkpoint.
pub fn manifest_name(group: GroupId) -> String {
    format!("group-{:04}{MANIFEST_SUFFIX}", group.0)
}

pub(crate) fn manifest_path(job: &JobId, checkpoint: &CheckpointId, group: GroupId) -> PathBuf {
    checkpoint_dir(job, checkpoint).join(manifest_name(group))
}

impl<F> Manifest<F> {
    /// The place of the checkpoint according to this group. The place of the checkpoint is the maximum of the places
    /// of its groups.
    pub fn place(&self) -> Place {
        Place { incarnation: self.incarnation, written_unix_ms: self.written_unix_ms }
    }
}

impl<F: Files> Manifest<F> {
    /// Checks the rules that need no other file. The error is the rule that is broken.
    pub(super) fn check(&self) -> Result<(), String> {
        let Some(grouping) = Grouping::new(self.ranks, self.group_size) else {
            return Err(format!("{} ranks in groups of {}", self.ranks, self.group_size));
        };
        let ranks = grouping.ranks_of(self.group);
        let stray = |&(low, high): &(u32, u32)| low < ranks.start || high >= ranks.end;
        match () {
            () if grouping.groups() != self.groups => Err(format!("{} groups", self.groups)),
            () if ranks.is_empty() => Err(format!("{} of {}", self.group, self.groups)),
            () if (ranks.start, ranks.end - ranks.start) != (self.first_rank.0, self.rank_count) => {
                Err(format!("{} ranks from {} on", self.rank_count, self.first_rank))
            }
            () if self.container.name != container_name(self.group) => {
                Err(format!("its container is {:?}", self.container.name))
            }
            () => match self.files.totals().ranks.filter(stray) {
                Some((low, high)) => {
                    Err(format!("it lists files of ranks {low} to {high}, which are not all in {}", self.group))
                }
                None => Ok(()),
            },
        }
    }
}

impl Manifest {
    /// The whole text, including the last line with the digest.
    pub(super) fn to_text(&self) -> Result<String, String> {
        let json = serde_json::to_string_pretty(self).map_err(|error| error.to_string())?;
        let mut text = format!("mcr-manifest {MANIFEST_VERSION}\n{json}\n");
        let digest = Digest::of(text.as_bytes());
        writeln!(text, "blake3 {digest}").map_err(|error| error.to_string())?;
        Ok(text)
    }

    /// Parses the text of a manifest. `path` appears in error messages only.
    pub fn parse(text: &[u8], path: &Path) -> Result<Self, ReadError> {
        Self::parse_text(text, path)
    }
}

impl<F: Files> Manifest<F> {
    fn parse_text(text: &[u8], path: &Path) -> Result<Self, ReadError> {
        let path = || path.to_path_buf();
        let invalid = |what: String| ReadError::Invalid { path: path(), part: "the manifest", what };
        let Some(rest) = text.strip_prefix(b"mcr-manifest ") else {
            return Err(ReadError::NotOurs { path: path(), what: "the manifest", at: 0 });
        };
        let version = rest.split(|&b| b == b'\n').next().and_then(|line| std::str::from_utf8(line).ok());
        match version.and_then(|version| version.parse::<u32>().ok()) {
            Some(MANIFEST_VERSION) => {}
            Some(found) if found > MANIFEST_VERSION => {
                return Err(ReadError::TooNew { path: path(), found, newest: MANIFEST_VERSION });
            }
            _ => return Err(invalid("its first line has no version".into())),
        }
        let body = checked_body(text, &path(), "the manifest")?;
        let json = body.iter().position(|&b| b == b'\n').map_or(&[][..], |line| &body[line + 1..]);
        let manifest: Self = serde_json::from_slice(json).map_err(|error| invalid(error.to_string()))?;
        manifest.check().map_err(invalid)?;
        Ok(manifest)
    }
}

/// Returns the text before the last line. The last line is `blake3 ` and the digest of the text before it. Fails if
/// the digest does not agree.
pub(crate) fn checked_body<'a>(text: &'a [u8], path: &Path, what: &'static str) -> Result<&'a [u8], ReadError> {
    const LAST_LINE_LEN: usize = "blake3 \n".len() + 64;
    let (needed, found) = (LAST_LINE_LEN as u64, text.len() as u64);
    let cut = ReadError::Cut { path: path.to_path_buf(), what, needed, found };
    let Some((body, last)) = text.len().checked_sub(LAST_LINE_LEN).map(|at| text.split_at(at)) else {
        return Err(cut);
    };
    let recorded = last.strip_prefix(b"blake3 ").and_then(|hex| hex.strip_suffix(b"\n"));
    // Only lower case is accepted, so that every flipped bit is noticed.
    let recorded = recorded.and_then(|hex| {
        let text = std::str::from_utf8(hex).ok()?;
        text.parse::<Digest>().ok().filter(|digest| digest.to_hex() == text)
    });
    let recorded = recorded.ok_or(cut)?;
    let found = Digest::of(body);
    match found == recorded {
        true => Ok(body),
        false => Err(ReadError::Digest { path: path.to_path_buf(), what: what.into(), found, recorded }),
    }
}

/// The text of a manifest or of the record of an incarnation, with another name of the job. All other values are
/// unchanged, including the values of keys that this build does not know.
pub(crate) fn with_job(text: &[u8], job: &JobId, path: &Path, what: &'static str) -> Result<Vec<u8>, ReadError> {
    let invalid = |what: String| ReadError::Invalid { path: path.into(), part: "the text", what };
    let body = checked_body(text, path, what)?;
    let (line, json) = body.split_at(body.iter().position(|&b| b == b'\n').map_or(body.len(), |at| at + 1));
    let renamed = || -> serde_json::Result<String> {
        let mut fields: BTreeMap<String, Box<RawValue>> = serde_json::from_slice(json)?;
        fields.insert("job".into(), serde_json::value::to_raw_value(job)?);
        serde_json::to_string(&fields)
    };
    let json = renamed().map_err(|error| invalid(error.to_string()))?;
    let mut text = [line, json.as_bytes(), b"\n"].concat();
    let digest = Digest::of(&text);
    text.extend_from_slice(format!("blake3 {digest}\n").as_bytes());
    Ok(text)
}

/// Whether a manifest that was read is still in the store. The manifest is opened but not read, because a committed
/// manifest never changes.
pub fn is_there(store: &dyn Store, manifest: &Manifest) -> bool {
    store.open(&manifest_path(&manifest.job, &manifest.checkpoint, manifest.group)).is_ok()
}

/// How long ago a manifest was written, by the clock of the store's file system.
pub fn age(store: &dyn Store, manifest: &Manifest) -> Result<Duration, StoreError> {
    store.age(&manifest_path(&manifest.job, &manifest.checkpoint, manifest.group))
}

/// Reads the manifest of one group, and checks that the manifest names this group.
pub fn read_manifest(
    store: &dyn Store,
    job: &JobId,
    checkpoint: &CheckpointId,
    group: GroupId,
) -> Result<Manifest, ReadError> {
    read_as(store, job, checkpoint, group)
}

fn read_as<F: Files>(
    store: &dyn Store,
    job: &JobId,
    checkpoint: &CheckpointId,
    group: GroupId,
) -> Result<Manifest<F>, ReadError> {
    read_with_text(store, job, checkpoint, group).map(|(manifest, _)| manifest)
}

/// Reads the manifest of one group without its list of files, and its whole text.
pub(crate) fn read_head_and_text(
    store: &dyn Store,
    job: &JobId,
    checkpoint: &CheckpointId,
    group: GroupId,
) -> Result<(Manifest<FileTotals>, Vec<u8>), ReadError> {
    read_with_text(store, job, checkpoint, group)
}

fn read_with_text<F: Files>(
    store: &dyn Store,
    job: &JobId,
    checkpoint: &CheckpointId,
    group: GroupId,
) -> Result<(Manifest<F>, Vec<u8>), ReadError> {
    let (text, path) = read_bytes(store, job, checkpoint, group)?;
    let manifest = Manifest::<F>::parse_text(&text, &path)?;
    let (found, expected) = ((&manifest.job, &manifest.checkpoint, manifest.group), (job, checkpoint, group));
    if found != expected {
        let show = |(job, checkpoint, group): (&JobId, &CheckpointId, GroupId)| format!("{job}/{checkpoint}, {group}");
        let (expected, found) = (show(expected), show(found));
        return Err(ReadError::Foreign { path, what: "the manifest", expected, found });
    }
    Ok((manifest, text))
}

/// The bytes of a manifest, which may be damaged. `None` if the file cannot be read.
pub(crate) fn readable_bytes(
    store: &dyn Store,
    job: &JobId,
    checkpoint: &CheckpointId,
    group: GroupId,
) -> Option<Vec<u8>> {
    read_bytes(store, job, checkpoint, group).ok().map(|(text, _)| text)
}

/// Reads the file of a manifest. Returns the bytes and the full path.
fn read_bytes(
    store: &dyn Store,
    job: &JobId,
    checkpoint: &CheckpointId,
    group: GroupId,
) -> Result<(Vec<u8>, PathBuf), ReadError> {
    let relative = manifest_path(job, checkpoint, group);
    let file = store.open(&relative).map_err(ReadError::from_store)?;
    let path = store.root().join(relative);
    let len = file.len();
    if len > MANIFEST_BYTES_MAX {
        let what = format!("it has {len} bytes, more than {MANIFEST_BYTES_MAX}");
        return Err(ReadError::Invalid { path, part: "the manifest", what });
    }
    let mut text = vec![0; len as usize];
    file.read_at(0, &mut text).map_err(|source| ReadError::Io { path: path.clone(), offset: 0, len, source })?;
    Ok((text, path))
}

/// The manifests of a checkpoint, in the order of the groups. Fails if a manifest cannot be read.
pub fn manifests(store: &dyn Store, job: &JobId, checkpoint: &CheckpointId) -> Result<Vec<Manifest>, ReadError> {
    let first = read_manifest(store, job, checkpoint, GroupId(0))?;
    let groups = first.groups;
    let mut all = vec![first];
    for group in 1..groups {
        all.push(read_manifest(store, job, checkpoint, GroupId(group))?);
    }
    Ok(all)
}

/// Reads the manifest of one group without its list of files.
pub(crate) fn read_head(
    store: &dyn Store,
    job: &JobId,
    checkpoint: &CheckpointId,
    group: GroupId,
) -> Result<Manifest<FileTotals>, ReadError> {
    read_as(store, job, checkpoint, group)
}

/// The group that a manifest's name states. `None` if this program would spell the name differently.
pub(crate) fn group_of_manifest(name: &str) -> Option<GroupId> {
    let number = name.strip_prefix("group-")?.strip_suffix(MANIFEST_SUFFIX)?;
    let group = GroupId(number.parse().ok()?);
    (manifest_name(group) == name).then_some(group)
}

/// Names the missing groups: "groups 0, 3-7 (of groups 0 to 11) are not committed". `there` are the committed groups,
/// sorted.
pub(crate) fn missing_groups(there: &[u32], groups: u32) -> Option<String> {
    if there.is_empty() {
        return Some("no group is committed".into());
    }
    let mut runs = String::new();
    let (mut next, mut missing) = (0, 0);
    for &group in there.iter().chain([&groups]) {
        if group > next {
            missing += group - next;
            let comma = if runs.is_empty() { "" } else { ", " };
            let _ = match group - 1 {
                last if last == next => write!(runs, "{comma}{next}"),
                last => write!(runs, "{comma}{next}-{last}"),
            };
        }
        next = group + 1;
    }
    let last = groups.saturating_sub(1);
    match missing {
        0 => None,
        1 => Some(format!("group {runs} (of groups 0 to {last}) is not committed")),
        _ => Some(format!("groups {runs} (of groups 0 to {last}) are not committed")),
    }
}

/// A digest as hexadecimal text.
mod hex {
    use crate::ids::Digest;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(digest: &Digest, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&digest.to_hex())
    }
    pub(super) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Digest, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

/// Writes a path as text. Reading the text gives the bytes of the path, even if the bytes are not UTF-8.
mod escaped {
    use crate::ids::FilePath;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    use std::fmt::Write;

    pub(super) fn serialize<S: Serializer>(path: &FilePath, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&escape(path.as_bytes()))
    }
    pub(super) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<FilePath, D::Error> {
        let text = String::deserialize(from)?;
        let bytes = unescape(&text).ok_or_else(|| D::Error::custom(format!("{text:?} has a bad escape")))?;
        FilePath::new(bytes).map_err(D::Error::custom)
    }

    pub(super) fn escape(bytes: &[u8]) -> String {
        let mut text = String::with_capacity(bytes.len());
        for chunk in bytes.utf8_chunks() {
            text.push_str(&chunk.valid().replace('\\', "\\\\"));
            for byte in chunk.invalid() {
                let _ = write!(text, "\\x{byte:02x}"); // writing to a String does not fail
            }
        }
        text
    }

    pub(super) fn unescape(text: &str) -> Option<Vec<u8>> {
        let mut bytes = Vec::with_capacity(text.len());
        let mut rest = text.as_bytes();
        while let Some((&byte, after)) = rest.split_first() {
            rest = after;
            if byte != b'\\' {
                bytes.push(byte);
                continue;
            }
            match rest {
                [b'\\', after @ ..] => {
                    bytes.push(b'\\');
                    rest = after;
                }
                [b'x', high, low, after @ ..] => {
                    let digit = |b: u8| char::from(b).to_digit(16).map(|d| d as u8);
                    bytes.push(digit(*high)? << 4 | digit(*low)?);
                    rest = after;
                }
                _ => return None,
            }
        }
        Some(bytes)
    }
}

impl Serialize for ContainerRef {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        Reference {
            checkpoint: self.checkpoint.clone(),
            group: self.group,
            digest: self.digest,
            index_digest: self.index_digest,
        }
        .serialize(to)
    }
}
impl<'a> Deserialize<'a> for ContainerRef {
    fn deserialize<D: serde::Deserializer<'a>>(from: D) -> Result<Self, D::Error> {
        let Reference { checkpoint, group, digest, index_digest } = Reference::deserialize(from)?;
        Ok(Self { checkpoint, group, digest, index_digest })
    }
}

/// A reference in the form in which a manifest stores it.
#[derive(Serialize, Deserialize)]
struct Reference {
    checkpoint: CheckpointId,
    group: GroupId,
    #[serde(with = "hex")]
    digest: Digest,
    #[serde(with = "hex")]
    index_digest: Digest,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_path_comes_back_whatever_its_bytes(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            prop_assert_eq!(escaped::unescape(&escaped::escape(&bytes)), Some(bytes));
        }
    }

    #[test]
    fn a_doubt_about_something_unknown_counts_as_a_doubt_about_the_files() {
        let doubt = |text: &str| serde_json::from_str::<Doubt>(text).expect("a doubt");
        assert_eq!(doubt(r#"{"about":"step","why":"x"}"#), Doubt::of_step("x".into()));
        for about in ["files", "a word of a later version"] {
            assert_eq!(doubt(&format!(r#"{{"about":"{about}","why":"x"}}"#)), Doubt::of_files("x".into()));
        }
        assert_eq!(
            serde_json::to_string(&Doubt::of_files("x".into())).expect("text"),
            r#"{"about":"files","why":"x"}"#
        );
    }

    #[test]
    fn missing_groups_are_named() {
        assert_eq!(missing_groups(&[0, 1, 2], 3), None);
        assert_eq!(missing_groups(&[], 3).as_deref(), Some("no group is committed"));
        let several = "groups 0, 2-4, 6-8 (of groups 0 to 8) are not committed";
        assert_eq!(missing_groups(&[1, 5], 9).as_deref(), Some(several));
        assert_eq!(missing_groups(&[0, 1, 2], 4).as_deref(), Some("group 3 (of groups 0 to 3) is not committed"));
    }

    #[test]
    fn only_our_own_names_are_manifests() {
        assert_eq!(group_of_manifest("group-0003.manifest"), Some(GroupId(3)));
        assert_eq!(group_of_manifest("group-123456.manifest"), Some(GroupId(123_456)));
        for other in ["group-3.manifest", ".group-0003.manifest.1", "group-0003.mcr", "group-+003.manifest"] {
            assert_eq!(group_of_manifest(other), None, "{other}");
        }
    }
}
