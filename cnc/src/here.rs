//! Where this process runs, as written into the names of files that several nodes may see.

use mcrengine::ids::Digest;
use std::sync::LazyLock;

/// Identifies where process numbers are valid: this boot of this node, and this process namespace. 16 hexadecimal
/// digits.
pub(crate) static HERE: LazyLock<String> = LazyLock::new(|| {
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let namespace = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    let text = [&boot, namespace.as_os_str().as_encoded_bytes()].concat();
    Digest::of(&text).to_string()[..16].to_owned()
});

/// Where this process runs, and its process number, as used in names.
pub(crate) fn here() -> String {
    format!("{}-{}", *HERE, std::process::id())
}
