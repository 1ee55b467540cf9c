//! Bytes that travel with an execution: input, result, continuation. Small ones live inside their document, larger
//! ones in a blob beside it.

use bytes::Bytes;

use crate::document;
use crate::encoding::Blob;
use crate::error::{Error, Result};
use crate::limits;

document! {
    /// Bytes with their content type, inside the document or beside it.
    pub struct Payload {
        /// The bytes, when they are small.
        "b" bytes: Blob,
        /// How many bytes there are.
        "z" size: u64,
        /// Their content type.
        "c" content_type: String,
        /// They live in a blob.
        "x" external: bool,
    }
}

impl Payload {
    /// Whether nothing was given, not even no bytes of some type.
    pub fn is_absent(&self) -> bool {
        self.content_type.is_empty() && self.size == 0
    }

    /// Divides bytes into what the document keeps and what goes into a blob.
    pub fn divide(bytes: Bytes, content_type: impl Into<String>) -> (Self, Option<Bytes>) {
        Self::divide_at(bytes, content_type, limits::INLINE_MAX_BYTES)
    }

    /// Divides a payload with a limit of its own for what is kept inside the document.
    pub fn divide_at(bytes: Bytes, content_type: impl Into<String>, inline_max_bytes: usize) -> (Self, Option<Bytes>) {
        let size = bytes.len() as u64;
        let (inside, beside) = match bytes.len() > inline_max_bytes {
            true => (Bytes::new(), Some(bytes)),
            false => (bytes, None),
        };
        let external = beside.is_some();
        let payload =
            Self { size, content_type: content_type.into(), external, bytes: Blob(inside), ..Default::default() };
        (payload, beside)
    }

    /// The bytes, given the blob when there is one.
    pub fn assemble(&self, blob: Option<Bytes>) -> Option<Bytes> {
        if self.external { blob } else { Some(self.bytes.0.clone()) }
    }
}

/// Refuses more bytes than a field may have.
pub fn check_size(field: &str, bytes: &[u8], max: usize) -> Result<()> {
    if bytes.len() > max { Err(Error::too_large(field, bytes.len(), max)) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Code;

    #[test]
    fn bytes_up_to_the_limit_stay_inside_and_one_more_goes_beside() {
        let (inside, blob) = Payload::divide(vec![7; limits::INLINE_MAX_BYTES].into(), "a/b");
        assert!(blob.is_none() && !inside.external);
        assert_eq!(inside.assemble(None).unwrap().len(), limits::INLINE_MAX_BYTES);
        let (beside, blob) = Payload::divide(vec![7; limits::INLINE_MAX_BYTES + 1].into(), "a/b");
        assert!(beside.external && beside.bytes.is_empty());
        assert_eq!(beside.assemble(blob).unwrap().len(), limits::INLINE_MAX_BYTES + 1);
    }

    #[test]
    fn one_byte_past_the_limit_is_refused() {
        assert!(check_size("input", &[0; 4], 4).is_ok());
        assert_eq!(check_size("input", &[0; 5], 4).unwrap_err().code, Code::PayloadTooLarge);
    }
}
