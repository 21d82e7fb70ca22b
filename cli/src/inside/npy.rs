//! The header of a file with a NumPy array, in version 1.0 of NumPy's file format (NEP 1).

/// The header of an .npy file. `descr` is NumPy's name of the element type, such as `<f8`.
pub fn header(descr: &str, shape: &[u64]) -> Vec<u8> {
    let dims: String = shape.iter().map(|n| format!("{n}, ")).collect();
    // A tuple of one element ends with a comma.
    let dims = if shape.len() == 1 { dims.trim_end() } else { dims.trim_end_matches(", ") };
    let mut text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({dims}), }}");
    // The length of the whole header is a multiple of 64, and the header ends with a line feed.
    let before = 10;
    let padding = (before + text.len() + 1).next_multiple_of(64) - before - text.len() - 1;
    text.push_str(&" ".repeat(padding));
    text.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend_from_slice(&(text.len() as u16).to_le_bytes()); // at most 32 dimensions of 22 characters
    bytes.extend_from_slice(text.as_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_the_header_of_nep_1() {
        for (shape, tuple) in [(vec![], "()"), (vec![7], "(7,)"), (vec![2, 3], "(2, 3)")] {
            let bytes = header("<f8", &shape);
            assert!(
                bytes.starts_with(b"\x93NUMPY\x01\x00") && bytes.len().is_multiple_of(64) && bytes.ends_with(b"\n")
            );
            assert_eq!(usize::from(u16::from_le_bytes([bytes[8], bytes[9]])), bytes.len() - 10);
            let text = String::from_utf8_lossy(&bytes[10..]).into_owned();
            let expected = format!("{{'descr': '<f8', 'fortran_order': False, 'shape': {tuple}, }}");
            assert!(text.starts_with(&expected), "{text}");
        }
    }
}
