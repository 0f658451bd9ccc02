//! `ringfence image`: the standard image of boxes that name none.

use std::process::{ExitCode, Stdio};

use ringfence::EngineError;
use ringfence::engines::docker::recipe::{self, Archive};
use ringfence::policy::policy::STANDARD_IMAGE;

use crate::args::Image;
use crate::failure::{Failure, Kind};
use crate::output;

pub fn image(command: &Image) -> Result<ExitCode, Failure> {
    let Image::Build { snapshot, mirror, tag } = command;
    let archive = match (snapshot, mirror) {
        (Some(time), _) => Archive::Snapshot(time.clone()),
        (None, mirror) => Archive::Mirror(mirror.clone()),
    };
    let facts = crate::host::here()?.facts()?;
    let dir = std::env::temp_dir().join(format!("ringfence-image-{}", std::process::id()));
    let failed = |error: std::io::Error| Failure::new(Kind::Output, format!("cannot use `{}`: {error}", dir.display()));
    std::fs::create_dir(&dir).map_err(failed)?;
    let tape = dir.join("root.tar");
    let built = build(&archive, &tape, &facts, tag.as_deref().unwrap_or(STANDARD_IMAGE));
    std::fs::remove_dir_all(&dir).map_err(failed)?;
    let (name, id) = built?;
    output::data(&format!("{name} {id}\n"))?;
    Ok(ExitCode::SUCCESS)
}

fn build(
    archive: &Archive,
    tape: &std::path::Path,
    facts: &ringfence::policy::facts::Facts,
    name: &str,
) -> Result<(String, String), Failure> {
    output::say(&format!("ringfence: unpacking {} packages of Debian {}", recipe::PACKAGES.len(), recipe::SUITE));
    let status = recipe::command(archive, tape).stdin(Stdio::null()).stdout(Stdio::null()).status();
    match status {
        Ok(status) if status.success() => {}
        Ok(status) => {
            return Err(Failure::new(Kind::Engine, format!("mmdebstrap could not build the image ({status})"))
                .hint("what it said is above"));
        }
        Err(error) => {
            return Err(Failure::new(Kind::Engine, format!("cannot start mmdebstrap: {error}"))
                .hint("install it: apt install mmdebstrap (Fedora: dnf install mmdebstrap)"));
        }
    }
    let id = recipe::load(facts, tape, name).map_err(EngineError::from)?;
    Ok((name.to_owned(), id))
}
