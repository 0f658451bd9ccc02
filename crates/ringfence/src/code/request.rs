//! Requests, in the form that each runner reads. They are made here, from checked parts, and trusted by the runner.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Number, Value, json};

use super::javascript::{self, Look};
use super::language::{Language, PYTHON_MORE, PYTHON_STAY, Wire};
use super::variables::is_variable;
use super::{Code, CodeError, MAX_INPUTS};

/// Lists in lists.
const MAX_DEPTH: usize = 500;

/// Goes before an answer in a session, where the interpreter waits for another request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mark<'a> {
    pub text: &'a str,
    /// Whether names are kept for the next one.
    pub keeps: bool,
}

/// A request for an interpreter that is warm: what it has already is not in it.
pub(super) fn encode_warm(code: &Code) -> Result<Vec<u8>, CodeError> {
    match code.language.wire {
        Wire::Marshal => {
            check_inputs(code)?;
            marshal(code, None, "", false).map(framed)
        }
        _ => encode(code, None, false),
    }
}

fn check_inputs(code: &Code) -> Result<Vec<u8>, CodeError> {
    let inputs = serde_json::to_vec(&code.inputs).map_err(|_| CodeError::InputsTooDeep)?;
    if inputs.len() > MAX_INPUTS { Err(CodeError::InputsTooLarge(inputs.len())) } else { Ok(inputs) }
}

/// The whole request as bytes. With a mark, the runner puts it before what it sends, keeps its variables, and waits for the
/// next one. `required`: there are packages for it.
pub(super) fn encode(code: &Code, mark: Option<Mark<'_>>, required: bool) -> Result<Vec<u8>, CodeError> {
    let inputs = check_inputs(code)?;
    match code.language.wire {
        Wire::Marshal => marshal(code, mark, PYTHON_MORE, required).map(framed),
        Wire::Json => Ok(framed(json_request(code, mark))),
        Wire::Lines => Ok(lines(code, &inputs, mark)),
    }
}

/// Tells an interpreter to get ready and to say when it is.
pub(super) fn warm(language: &Language) -> Vec<u8> {
    match language.wire {
        Wire::Marshal => {
            let mut out = vec![b'{'];
            marshal_text(&mut out, "warm");
            out.push(b'T');
            for (name, value) in [("more", PYTHON_MORE), ("stay", PYTHON_STAY)] {
                marshal_text(&mut out, name);
                marshal_text(&mut out, value);
            }
            out.push(b'0');
            framed(out)
        }
        Wire::Json => framed(json!({ "warm": true }).to_string().into_bytes()),
        Wire::Lines => Vec::new(),
    }
}

fn marshal_text(out: &mut Vec<u8>, text: &str) {
    out.push(b'u');
    length(out, text.len());
    out.extend(text.as_bytes());
}

fn marshal_bytes(out: &mut Vec<u8>, data: &[u8]) {
    out.push(b's');
    length(out, data.len());
    out.extend(data);
}

fn framed(payload: Vec<u8>) -> Vec<u8> {
    let mut bytes = format!("{}\n", payload.len()).into_bytes();
    bytes.extend(payload);
    bytes
}

fn json_request(code: &Code, mark: Option<Mark<'_>>) -> Vec<u8> {
    // What is stripped of TypeScript is left to Node, and so is how it reads the rest.
    let javascript = code.language.name == "javascript";
    let look =
        if javascript { javascript::look(code.source(), mark.is_some_and(|mark| mark.keeps)) } else { Look::default() };
    let files: Vec<(&str, String)> = code.files.iter().map(|f| (f.path.as_str(), STANDARD.encode(&f.data))).collect();
    let request = json!({
        "language": code.language.name,
        "code": code.source(),
        "name": code.name(),
        "inputs": code.inputs,
        "files": files,
        "out": code.out,
        "keep": mark.is_some(),
        "mark": mark.map_or("", |mark| mark.text),
        "look": look,
    });
    request.to_string().into_bytes()
}

fn lines(code: &Code, inputs: &[u8], mark: Option<Mark<'_>>) -> Vec<u8> {
    // A shell has no NUL in its texts.
    let source: Vec<u8> = code.source().bytes().filter(|byte| *byte != 0).collect();
    let empty = Map::new();
    let members = code.inputs.as_object().unwrap_or(&empty);
    let variables: Vec<(&String, Vec<u8>)> = members
        .iter()
        .filter(|(name, _)| is_variable(name))
        .map(|(name, value)| {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            (name, text.bytes().filter(|byte| *byte != 0).collect())
        })
        .collect();
    let (files, out) = (code.files.len(), code.out.len());
    let (lengths, mark) =
        (format!("{} {} {}", source.len(), inputs.len(), variables.len()), mark.map_or("-", |mark| mark.text));
    let mut bytes = format!("{lengths} {files} {out} {mark}\n").into_bytes();
    bytes.extend(source);
    bytes.extend(inputs);
    for (name, value) in variables {
        bytes.extend(format!("{name} {}\n", value.len()).into_bytes());
        bytes.extend(value);
    }
    for file in &code.files {
        bytes.extend(format!("{} {}\n", file.path.len(), file.data.len()).into_bytes());
        bytes.extend(file.path.as_bytes());
        bytes.extend(&file.data);
    }
    for pattern in &code.out {
        bytes.extend(format!("{}\n", pattern.len()).into_bytes());
        bytes.extend(pattern.as_bytes());
    }
    bytes
}

/// Python's own format, version 2: it is read in one call by what every interpreter has in it.
fn marshal(code: &Code, mark: Option<Mark<'_>>, more: &str, required: bool) -> Result<Vec<u8>, CodeError> {
    let mut out = Vec::new();
    let text = marshal_text;
    out.push(b'{');
    let mark_text = mark.map_or("", |mark| mark.text);
    let required = if required { code.language.requirements_at() } else { "" };
    text(&mut out, "required");
    text(&mut out, required);
    let texts = [("code", code.source()), ("name", code.name()), ("more", more), ("mark", mark_text)];
    for (name, value) in texts {
        text(&mut out, name);
        text(&mut out, value);
    }
    if mark.is_some() {
        text(&mut out, "stay");
        text(&mut out, PYTHON_STAY);
    }
    text(&mut out, "inputs");
    marshal_value(&mut out, &code.inputs, 0)?;
    text(&mut out, "keep");
    out.push(if mark.is_some() { b'T' } else { b'F' });
    text(&mut out, "files");
    out.push(b'[');
    length(&mut out, code.files.len());
    for file in &code.files {
        out.push(b'(');
        length(&mut out, 2);
        text(&mut out, &file.path);
        marshal_bytes(&mut out, &file.data);
    }
    text(&mut out, "out");
    out.push(b'[');
    length(&mut out, code.out.len());
    code.out.iter().for_each(|pattern| text(&mut out, pattern));
    out.push(b'0');
    Ok(out)
}

fn length(out: &mut Vec<u8>, length: usize) {
    // Everything here is bounded far below.
    out.extend(u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
}

fn marshal_value(out: &mut Vec<u8>, value: &Value, depth: usize) -> Result<(), CodeError> {
    if depth > MAX_DEPTH {
        return Err(CodeError::InputsTooDeep);
    }
    match value {
        Value::Null => out.push(b'N'),
        Value::Bool(true) => out.push(b'T'),
        Value::Bool(false) => out.push(b'F'),
        Value::Number(number) => marshal_number(out, number),
        Value::String(text) => marshal_text(out, text),
        Value::Array(items) => {
            out.push(b'[');
            length(out, items.len());
            for item in items {
                marshal_value(out, item, depth + 1)?;
            }
        }
        Value::Object(members) => {
            out.push(b'{');
            for (name, value) in members {
                marshal_text(out, name);
                marshal_value(out, value, depth + 1)?;
            }
            out.push(b'0');
        }
    }
    Ok(())
}

fn marshal_number(out: &mut Vec<u8>, number: &Number) {
    let whole = number.as_i64().map(i128::from).or(number.as_u64().map(i128::from));
    match whole {
        Some(whole) => match i32::try_from(whole) {
            Ok(small) => {
                out.push(b'i');
                out.extend(small.to_le_bytes());
            }
            // Digits of 15 bits, the sign in their count.
            Err(_) => {
                let mut rest = whole.unsigned_abs();
                let mut digits: Vec<u16> = Vec::new();
                while rest > 0 {
                    digits.push((rest & 0x7FFF) as u16);
                    rest >>= 15;
                }
                let count = digits.len() as i32;
                out.push(b'l');
                out.extend((if whole < 0 { -count } else { count }).to_le_bytes());
                digits.iter().for_each(|digit| out.extend(digit.to_le_bytes()));
            }
        },
        None => {
            out.push(b'g');
            out.extend(number.as_f64().unwrap_or(f64::NAN).to_le_bytes());
        }
    }
}
