//! Makes the raw bytes of one segment: fetches the pieces, compares them with their digests, and merges them.

use crate::digests::Digests;
use crate::source::{FetchError, Wanted};
use mcrengine::merge::{Layout, merge};
use mcrengine::plan::SegmentPlan;

/// Fetches the pieces of a segment and merges them. The returned buffer begins with the bytes of the segment. If
/// merging only concatenates the pieces, the returned buffer is `buffer`.
///
/// Compares the digest of every variable that is whole in the segment. If [`Digests::has_parts`] is true for the
/// segment, the caller must compare further digests.
pub(crate) fn fetch_segment(
    digests: Digests<'_>,
    segment: &SegmentPlan,
    mut buffer: Vec<u8>,
) -> Result<Vec<u8>, FetchError> {
    let raw_bytes = usize::try_from(segment.raw_bytes.0).expect("a segment is at most 1 GiB");
    if buffer.len() < raw_bytes {
        // A new buffer is made, because `resize` would copy the old bytes. The length is a power of two, so that a
        // slightly longer next segment fits too.
        buffer = vec![0; raw_bytes.checked_next_power_of_two().unwrap_or(raw_bytes)];
    }
    let mut rest = &mut buffer[..raw_bytes];
    let mut wanted: Vec<Wanted<'_>> = Vec::with_capacity(segment.pieces.len());
    for piece in &segment.pieces {
        let into;
        (into, rest) = rest.split_at_mut(piece.bytes as usize);
        wanted.push(Wanted { variable: piece.variable, offset: piece.offset, into });
    }
    let mut arriving = digests.arriving(segment);
    digests.source.fetch(&mut wanted, &mut |nth, bytes| arriving.push(nth, bytes))?;
    arriving.finish()?;
    if segment.layout == Layout::Concatenated {
        return Ok(buffer);
    }
    let mut pieces: Vec<&[u8]> = Vec::with_capacity(segment.pieces.len());
    let mut rest = &buffer[..];
    for piece in &segment.pieces {
        let (bytes, after) = rest.split_at(piece.bytes as usize);
        pieces.push(bytes);
        rest = after;
    }
    Ok(merge(&pieces, segment.layout))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Source;
    use mcrengine::classify::VariableRef;
    use mcrengine::header::{ElementType, Extent, FileHeader, Role, Shape, VariableHeader};
    use mcrengine::ids::{Digest, FilePath, Rank};
    use mcrengine::plan::Piece;
    use mcrengine::units::RawBytes;

    /// A source with these bytes. The source passes the bytes on in steps of three bytes. The bytes of the first file
    /// count as already compared.
    struct FirstIsChecked(&'static [u8]);
    impl Source for FirstIsChecked {
        fn fetch(&self, wanted: &mut [Wanted<'_>], filled: &mut dyn FnMut(usize, &[u8])) -> Result<(), FetchError> {
            let mut rest = self.0;
            for (nth, run) in wanted.iter_mut().enumerate() {
                let bytes;
                (bytes, rest) = rest.split_at(run.into.len());
                run.into.copy_from_slice(bytes);
                run.into.chunks(3).for_each(|step| filled(nth, step));
            }
            Ok(())
        }
        fn is_checked(&self, file: u32) -> bool {
            file == 0
        }
        fn parallel(&self) -> usize {
            1
        }
    }

    /// A file that is one variable.
    fn file(rank: u32, bytes: u64, digest: Digest) -> FileHeader {
        let variable = VariableHeader {
            role: Role::WholeFile,
            path: "".into(),
            element: ElementType::Bytes,
            shape: Shape([bytes].into()),
            chunk: Default::default(),
            raw_bytes: RawBytes(bytes),
            digest,
            filters: [].into(),
            extents: [Extent { offset: 0, stored_bytes: bytes, raw_bytes: bytes }].into(),
        };
        let path = FilePath::new(format!("f{rank}").into_bytes()).expect("valid");
        FileHeader {
            path,
            rank: Rank(rank),
            bytes,
            kind: Default::default(),
            mode: 0o600,
            modified_ns: 0,
            digest,
            variables: vec![variable],
        }
    }

    fn segment(pieces: &[(u32, u64, u64)]) -> SegmentPlan {
        let piece = |&(file, offset, bytes): &(u32, u64, u64)| {
            let variable = VariableRef { file, variable: 0 };
            Piece { variable, offset, bytes }
        };
        SegmentPlan {
            class: None,
            role: Role::WholeFile,
            element: ElementType::Bytes,
            columns: Vec::new(),
            raw_bytes: pieces.iter().map(|p| RawBytes(p.2)).sum(),
            pieces: pieces.iter().map(piece).collect(),
            layout: Layout::Concatenated,
        }
    }

    #[test]
    fn bytes_that_were_not_hashed_where_they_are_are_compared_beside_those_that_were() {
        let no_digest = mcrengine::container::NO_DIGEST;
        let files = [file(0, 4, no_digest), file(1, 4, Digest::of(b"bbbb")), file(2, 2, Digest::of(b"cc"))];
        let all = segment(&[(0, 0, 4), (1, 0, 4), (2, 0, 2)]);
        let fetch = |bytes| {
            let source = FirstIsChecked(bytes);
            let digests = Digests { source: &source, files: &files };
            assert!(!digests.has_parts(&all));
            fetch_segment(digests, &all, Vec::new())
        };
        assert!(fetch(b"aaaabbbbcc").expect("as announced").starts_with(b"aaaabbbbcc"));
        for (bytes, changed) in [(b"aaaabbbBcc", 1), (b"aaaaBbbbcc", 1), (b"aaaabbbbcC", 2)] {
            let error = fetch(bytes).expect_err("one changed");
            assert!(matches!(error, FetchError::Changed { rank: Rank(r), .. } if r == changed), "{error}");
        }
    }

    #[test]
    fn a_variable_in_two_segments_is_compared_when_its_last_byte_is_there() {
        let files = [file(0, 4, mcrengine::container::NO_DIGEST), file(1, 4, Digest::of(b"bbbb"))];
        let (front, back) = (segment(&[(0, 0, 4), (1, 0, 1)]), segment(&[(1, 1, 3)]));
        let source = FirstIsChecked(b"aaaab");
        let digests = Digests { source: &source, files: &files };
        let raw = fetch_segment(digests, &front, Vec::new()).expect("nothing to compare yet");
        assert!(digests.has_parts(&front) && raw.starts_with(b"aaaab"));
        for (rest, is_same) in [(b"bbb", true), (b"bbB", false)] {
            let mut spread = digests.spread();
            spread.push(&front, b"aaaab").expect("not whole yet");
            assert_eq!(spread.push(&back, rest).is_ok(), is_same);
        }
    }
}
