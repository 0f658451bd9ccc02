//! The canonical form of data: JSON without spaces, keys in the order of their bytes. Equal data has one text and one
//! hash. They depend on the names that data is written with, and not on how types are called.

use serde::Serialize;
use serde_json::Value;

use crate::layers::content_hash;

/// Data that has no canonical form: a number that is not finite, say, or a map whose keys are not strings.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the canonical form: {0}")]
pub struct CanonicalError(#[from] serde_json::Error);

/// The canonical text.
pub fn text(data: &impl Serialize) -> Result<String, CanonicalError> {
    let mut out = String::new();
    write(&serde_json::to_value(data)?, &mut out)?;
    Ok(out)
}

/// The hash of the canonical text: `sha256:` and hex digits.
pub fn hash(data: &impl Serialize) -> Result<String, CanonicalError> {
    Ok(content_hash(text(data)?.as_bytes()))
}

/// A program that links us may keep the order of keys (serde_json's feature `preserve_order`), so they are sorted here.
fn write(value: &Value, out: &mut String) -> Result<(), serde_json::Error> {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            out.push_str(&serde_json::to_string(value)?);
        }
        Value::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                out.push_str(if index > 0 { "," } else { "" });
                write(item, out)?;
            }
            out.push(']');
        }
        Value::Object(members) => {
            let mut members: Vec<_> = members.iter().collect();
            members.sort_by_key(|(key, _)| *key);
            out.push('{');
            for (index, (key, member)) in members.into_iter().enumerate() {
                out.push_str(if index > 0 { "," } else { "" });
                out.push_str(&serde_json::to_string(key)?);
                out.push(':');
                write(member, out)?;
            }
            out.push('}');
        }
    }
    Ok(())
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
