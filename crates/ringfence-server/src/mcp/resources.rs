//! Resources: the policy, the report, and recent commands. Reading them makes no session.

use rmcp::model::{ErrorData, ReadResourceResult, Resource, ResourceContents, ResourceTemplate};
use serde::Serialize;
use serde_json::{Value, json};

use super::client_roots::Places;
use super::jobs::Stream;
use super::live::Live;
use super::owner::Allowed;
use super::words;

const POLICY: &str = "ringfence://policy";
const REPORT: &str = "ringfence://report";
const EXECUTIONS: &str = "ringfence://executions";
/// The most of the end of each stream that a resource carries; command_output has the rest.
const MOST: usize = 64 << 10;
const JSON: &str = "application/json";

pub fn all() -> Vec<Resource> {
    [
        (POLICY, "policy", "What the sandbox may read, write, reach and spend"),
        (REPORT, "report", "How each guarantee is enforced, and by what"),
        (EXECUTIONS, "executions", "Commands that run in the sandbox, and the last commands, code and skills that ran"),
    ]
    .into_iter()
    .map(|(uri, name, about)| Resource::new(uri, name).with_description(about).with_mime_type(JSON))
    .collect()
}

pub fn templates() -> Vec<ResourceTemplate> {
    let template = ResourceTemplate::new(format!("{EXECUTIONS}/{{id}}"), "execution");
    vec![
        template
            .with_description("The end of one command's output; command_output shows the rest")
            .with_mime_type(JSON),
    ]
}

pub async fn read(live: &Live, uri: &str) -> Result<ReadResourceResult, ErrorData> {
    let value = match uri {
        POLICY => {
            let (allowed, places) = allowed(live).await?;
            let at = allowed.sandbox.policy().workdir_inside();
            encode(&words::of(allowed.sandbox.policy(), at, &places.also))?
        }
        REPORT => encode(&allowed(live).await?.0.report)?,
        EXECUTIONS => executions(live).await?,
        _ => match uri.strip_prefix(EXECUTIONS).and_then(|rest| rest.strip_prefix('/')) {
            Some(id) => execution(live, id).ok_or_else(|| missing(uri))?,
            None => return Err(missing(uri)),
        },
    };
    let text = serde_json::to_string_pretty(&value).map_err(internal)?;
    let contents = ResourceContents::TextResourceContents {
        uri: uri.to_owned(),
        mime_type: Some(JSON.to_owned()),
        text,
        meta: None,
    };
    Ok(ReadResourceResult::new(vec![contents]))
}

fn missing(uri: &str) -> ErrorData {
    ErrorData::resource_not_found(format!("no resource `{uri}`"), None)
}

fn internal(error: impl std::fmt::Display) -> ErrorData {
    ErrorData::internal_error(error.to_string(), None)
}

fn encode(value: &impl Serialize) -> Result<Value, ErrorData> {
    serde_json::to_value(value).map_err(internal)
}

async fn allowed(live: &Live) -> Result<(Allowed, Places), ErrorData> {
    match live.current().await {
        Some(opened) => Ok((opened.allowed.clone(), opened.places.clone())),
        None => {
            let places = live.places(&[]);
            Ok((live.allowed(&places).map_err(internal)?, places))
        }
    }
}

async fn executions(live: &Live) -> Result<Value, ErrorData> {
    let code = encode(&live.all_ran())?;
    let Some(opened) = live.current().await else { return Ok(json!({ "executions": [], "code": code })) };
    let list = opened.session.executions().await.map_err(internal)?;
    Ok(json!({ "session": opened.session.id(), "executions": encode(&list)?, "code": code }))
}

fn execution(live: &Live, id: &str) -> Option<Value> {
    let job = live.jobs.get(id)?;
    let stream = |stream| {
        let page = job.tail(stream, 0, MOST);
        json!({ "from": page.at, "bytes": page.total, "text": page.text })
    };
    Some(json!({ "id": id, "stdout": stream(Stream::Stdout), "stderr": stream(Stream::Stderr) }))
}
