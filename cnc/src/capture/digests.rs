//! Computes the digests of a file and of its variables without filters, in one pass over the file if possible.

use super::input::{BUFFER_BYTES, Input, again};
use mcrengine::container::{DIGEST_BYTES_MIN, NO_DIGEST};
use mcrengine::gathered::Gathered;
use mcrengine::header::{Extent, VariableHeader};
use mcrengine::ids::Digest;
use std::collections::HashMap;
use std::io;

/// Placeholder for a digest that is not yet known.
pub(super) const PENDING: Digest = NO_DIGEST;
/// Maximum number of variables whose digests are computed at the same time during the pass over the file. Further
/// variables are read a second time.
const HASHERS_MAX: usize = 64;

/// Computes all pending digests of variables. Returns the digest of the file.
pub(super) fn digests(input: &mut Input<'_>, variables: &mut [VariableHeader]) -> io::Result<Digest> {
    let least = if input.keep.is_some() { DIGEST_BYTES_MIN } else { 0 };
    let is_pending = |v: &VariableHeader| v.digest == PENDING && v.raw_bytes.0 >= least;
    let pending: Vec<usize> = (0..variables.len()).filter(|&v| is_pending(&variables[v])).collect();
    if input.whole.is_some() {
        for v in pending {
            variables[v].digest = again(input, &variables[v].extents)?;
        }
        return input.digest();
    }
    // The extents of the variables that can be hashed in one pass over the file.
    let in_order = |v: &VariableHeader| v.extents.is_sorted_by_key(|e| e.offset);
    let mut runs: Vec<(Extent, usize)> = (pending.iter().filter(|&&v| in_order(&variables[v])))
        .flat_map(|&v| variables[v].extents.iter().map(move |e| (*e, v)))
        .collect();
    runs.sort_unstable_by_key(|(e, _)| e.offset);
    let mut last: HashMap<usize, u64> = HashMap::new();
    let mut open: HashMap<usize, Gathered> = HashMap::new();
    for (extent, v) in &runs {
        last.insert(*v, extent.offset);
    }
    let mut file = blake3::Hasher::new();
    let mut next = 0;
    let mut at = 0;
    while at < input.bytes {
        let buffer = input.get(at, BUFFER_BYTES.min(input.bytes - at))?;
        let end = at + buffer.len() as u64;
        file.update(buffer);
        while let Some((extent, v)) = runs.get(next).filter(|(e, _)| e.offset < end) {
            let extent_end = extent.offset + extent.stored_bytes;
            let slice = &buffer[(extent.offset.max(at) - at) as usize..(extent_end.min(end) - at) as usize];
            let starts = variables[*v].extents.first().is_some_and(|first| first.offset == extent.offset);
            if starts && !open.contains_key(v) && open.len() < HASHERS_MAX {
                open.insert(*v, Gathered::default());
            }
            if let Some(hasher) = open.get_mut(v) {
                hasher.push(slice);
            }
            if extent_end > end {
                break;
            }
            if last.get(v) == Some(&extent.offset)
                && let Some(hasher) = open.remove(v)
            {
                variables[*v].digest = hasher.finish();
            }
            next += 1;
        }
        at = end;
    }
    for v in pending {
        if variables[v].digest == PENDING {
            variables[v].digest = again(input, &variables[v].extents)?;
        }
    }
    Ok(file.finalize().into())
}
