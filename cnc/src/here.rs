//! Identifies where this process runs. The result is part of the names of files that several nodes may see.

use mcrengine::ids::Digest;
use std::sync::LazyLock;

/// Identifies the boot of this node and the process namespace, within which process numbers are valid. 16 hexadecimal
/// digits.
pub(crate) static HERE: LazyLock<String> = LazyLock::new(|| {
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let namespace = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    let text = [&boot, namespace.as_os_str().as_encoded_bytes()].concat();
    Digest::of(&text).to_string()[..16].to_owned()
});

/// The value of [`HERE`] and the number of this process, for use in names.
pub(crate) fn here() -> String {
    format!("{}-{}", *HERE, std::process::id())
}
