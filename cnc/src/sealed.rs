//! Reads and writes small files of mcrEngine with three lines: kind and version, JSON, and the BLAKE3 digest of the
//! first two lines.

use mcrengine::ids::Digest;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Maximum length of such a file in bytes. This length is enough for a million paths.
const BYTES_MAX: u64 = 256 << 20;

/// Writes a file under a temporary name and renames it. If `sync` is true, the file and its name are durable when
/// this function returns.
pub(crate) fn write<T: Serialize>(
    dir: &Path,
    name: &str,
    kind: &str,
    version: u32,
    content: &T,
    sync: bool,
) -> io::Result<()> {
    let mut text = format!("{kind} {version}\n{}\n", serde_json::to_string(content)?);
    let digest = Digest::of(text.as_bytes()).to_hex();
    text.extend(["blake3 ", &digest, "\n"]);
    let temporary = dir.join(format!("{name}.new"));
    let write = || {
        let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        file.write_all(text.as_bytes())?;
        if sync {
            file.sync_all()?;
        }
        std::fs::rename(&temporary, dir.join(name))?;
        if sync { File::open(dir)?.sync_all() } else { Ok(()) }
    };
    write().inspect_err(|_| drop(std::fs::remove_file(&temporary)))
}

/// Reads a file that `write` has written. The error text says what is wrong with the file.
pub(crate) fn read<T: DeserializeOwned>(path: &Path, kind: &str, version: u32) -> Result<T, String> {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(BYTES_MAX + 1).read_to_string(&mut text));
    match read {
        Err(error) => return Err(error.to_string()),
        Ok(bytes) if bytes as u64 > BYTES_MAX => return Err(format!("the file has more than {BYTES_MAX} bytes")),
        Ok(_) => {}
    }
    parse(&text, kind, version)
}

fn parse<T: DeserializeOwned>(text: &str, kind: &str, version: u32) -> Result<T, String> {
    let cut = || "the file is cut short".to_owned();
    let (body, last) = text.strip_suffix('\n').and_then(|text| text.rsplit_once('\n')).ok_or_else(cut)?;
    let recorded = last.strip_prefix("blake3 ").ok_or_else(cut)?;
    let covered = &text[..body.len() + 1];
    if Digest::of(covered.as_bytes()).to_hex() != recorded {
        return Err("the checksum does not match".into());
    }
    let (first, json) = body.split_once('\n').ok_or_else(cut)?;
    match first.strip_prefix(kind).map(str::trim).and_then(|found| found.parse::<u32>().ok()) {
        Some(found) if found == version => serde_json::from_str(json).map_err(|error| error.to_string()),
        Some(found) => Err(format!("the file has version {found}, and this program reads version {version}")),
        None => Err(format!("the file is no {kind} file")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_and_every_cut_and_flipped_bit_is_noticed() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("x");
        write(dir.path(), "x", "mcr-x", 1, &vec!["a", "b"], true).expect("written");
        assert_eq!(read::<Vec<String>>(&path, "mcr-x", 1), Ok(vec!["a".into(), "b".into()]));
        assert!(read::<Vec<String>>(&path, "mcr-x", 2).is_err_and(|why| why.contains("version 1")));
        assert!(read::<Vec<String>>(&path, "mcr-y", 1).is_err_and(|why| why.contains("no mcr-y")));
        let whole = std::fs::read_to_string(&path).expect("read");
        for at in 0..whole.len() {
            assert!(parse::<Vec<String>>(&whole[..at], "mcr-x", 1).is_err(), "{at} of {} bytes", whole.len());
            let mut flipped = whole.clone().into_bytes();
            flipped[at] ^= 1;
            let flipped = String::from_utf8(flipped).expect("text");
            assert!(parse::<Vec<String>>(&flipped, "mcr-x", 1).is_err(), "byte {at}");
        }
    }
}
