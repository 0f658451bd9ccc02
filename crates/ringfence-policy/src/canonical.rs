//! The canonical form of data: JSON without spaces, keys in the order of their bytes. Equal data has one text and one
//! hash. They depend on the names that data is written with, and not on how types are called.

use serde::Serialize;

use crate::layers::content_hash;

/// Data that has no canonical form: a number that is not finite, say, or a map whose keys are not strings.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the canonical form: {0}")]
pub struct CanonicalError(#[from] serde_json::Error);

/// The canonical text.
pub fn text(data: &impl Serialize) -> Result<String, CanonicalError> {
    let mut value = serde_json::to_value(data)?;
    // A program that links us may keep the order of keys (serde_json's feature `preserve_order`).
    value.sort_all_objects();
    Ok(serde_json::to_string(&value)?)
}

/// The hash of the canonical text: `sha256:` and hex digits.
pub fn hash(data: &impl Serialize) -> Result<String, CanonicalError> {
    Ok(content_hash(text(data)?.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_text_for_equal_data() {
        #[derive(Serialize)]
        struct Before {
            b: Option<u8>,
            a: Vec<&'static str>,
        }
        #[derive(Serialize)]
        struct After {
            a: [char; 2],
            b: (),
        }
        let expected = "{\"a\":[\"\\n\",\"é\"],\"b\":null}";
        assert_eq!(text(&Before { b: None, a: vec!["\n", "é"] }).unwrap(), expected);
        assert_eq!(text(&After { a: ['\n', 'é'], b: () }).unwrap(), expected);
        assert_eq!(hash(&After { a: ['\n', 'é'], b: () }).unwrap(), content_hash(expected.as_bytes()));
    }

    #[test]
    fn what_has_no_canonical_form_is_refused() {
        let limits = |cpus| crate::limits::Limits { cpus: Some(cpus), ..Default::default() };
        assert!(hash(&limits(1.5)).is_ok());
        assert!(hash(&limits(f64::NAN)).is_err() && hash(&limits(f64::INFINITY)).is_err());
    }
}
