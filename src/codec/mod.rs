//! Placeholder with the names that the containers are written against.

/// The number FORMAT.md assigns to a codec.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CodecId(pub u16);

/// One step of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Step {
    /// Which codec.
    pub codec: CodecId,
    /// Its parameter.
    pub param: u32,
}

/// What goes wrong in a codec.
#[derive(Debug, thiserror::Error)]
pub enum CodecError {
    /// A number this build does not know.
    #[error("codec {0} is not known")]
    Unknown(u16),
    /// Anything else.
    #[error("{0}")]
    Damaged(&'static str),
}

/// The steps that code a segment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Chain(Vec<Step>);

/// One piece of a segment.
pub struct ArrayShape {
    /// How many.
    pub elements: u64,
    /// Dimensions.
    pub dims: Vec<u64>,
}

/// Buffers that are used again.
#[derive(Default)]
pub struct Scratch {}

impl Chain {
    /// As it is.
    pub fn raw() -> Self {
        Self(vec![Step { codec: CodecId(1), param: 0 }])
    }
    /// Zstandard.
    pub fn zstd(level: u32) -> Self {
        Self(vec![Step { codec: CodecId(1), param: 0 }, Step { codec: CodecId(34), param: level }])
    }
    /// Count, then steps.
    pub fn to_bytes(&self, out: &mut Vec<u8>) {
        out.push(self.0.len() as u8);
        for step in &self.0 {
            out.extend_from_slice(&step.codec.0.to_le_bytes());
            out.extend_from_slice(&step.param.to_le_bytes());
        }
    }
    /// The inverse, with the bytes used.
    pub fn from_bytes(bytes: &[u8]) -> Result<(Self, usize), CodecError> {
        let count = *bytes.first().ok_or(CodecError::Damaged("empty"))? as usize;
        let end = 1 + 6 * count;
        let bytes = bytes.get(1..end).ok_or(CodecError::Damaged("cut"))?;
        let mut steps = Vec::new();
        for step in bytes.chunks_exact(6) {
            let codec = CodecId(u16::from_le_bytes([step[0], step[1]]));
            let param = u32::from_le_bytes([step[2], step[3], step[4], step[5]]);
            if ![1, 34].contains(&codec.0) {
                return Err(CodecError::Unknown(codec.0));
            }
            steps.push(Step { codec, param });
        }
        match steps.first() {
            Some(step) if step.codec.0 == 1 && count <= 2 => Ok((Self(steps), end)),
            _ => Err(CodecError::Damaged("no chain")),
        }
    }
    /// Codes.
    pub fn encode(&self, raw: &[u8], _: &[ArrayShape], _: &mut Scratch) -> Result<Vec<u8>, CodecError> {
        match self.0.get(1) {
            None => Ok(raw.to_vec()),
            Some(step) => {
                zstd::bulk::compress(raw, step.param as i32).map_err(|_| CodecError::Damaged("zstd does not encode"))
            }
        }
    }
    /// The inverse.
    pub fn decode(&self, stored: &[u8], raw_bytes: usize, _: &mut Scratch) -> Result<Vec<u8>, CodecError> {
        let raw = match self.0.get(1) {
            None => stored.to_vec(),
            Some(_) => zstd::bulk::decompress(stored, raw_bytes).map_err(|_| CodecError::Damaged("zstd"))?,
        };
        if raw.len() == raw_bytes { Ok(raw) } else { Err(CodecError::Damaged("length")) }
    }
}
