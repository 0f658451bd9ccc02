//! The engines there are: a line for each. Nothing else tells one from another by its name.

use std::sync::{Mutex, PoisonError};

use ringfence_policy::profiles::{EngineChoice, KnownEngine};

use super::{EngineError, EngineRef};

/// In the order in which `auto` asks them.
static BUILT_IN: &[EngineRef] = &[
    super::native::ENGINE,
    super::bubblewrap::ENGINE,
    #[cfg(feature = "docker")]
    super::docker::ENGINE,
];

/// Engines that are to come: a configuration may name them, and no sandbox is made.
const PLANNED: [KnownEngine; 1] = [KnownEngine { name: std::borrow::Cow::Borrowed("kubernetes"), images: true }];

static ADDED: Mutex<Vec<EngineRef>> = Mutex::new(Vec::new());

/// Adds an engine that a program brings along; after all others, and one of each name. No released program does.
pub fn add(engine: EngineRef) {
    let mut added = ADDED.lock().unwrap_or_else(PoisonError::into_inner);
    if !BUILT_IN.iter().chain(added.iter()).any(|known| known.name() == engine.name()) {
        added.push(engine);
    }
}

/// All of them, in order.
pub fn all() -> Vec<EngineRef> {
    let added = ADDED.lock().unwrap_or_else(PoisonError::into_inner);
    BUILT_IN.iter().chain(added.iter()).copied().collect()
}

/// The engine of this name.
pub fn find(name: &str) -> Option<EngineRef> {
    all().into_iter().find(|engine| engine.name() == name)
}

/// The engine of this name, or why there is none.
pub fn get(name: &str) -> Result<EngineRef, EngineError> {
    find(name).ok_or_else(|| {
        let planned = PLANNED.iter().any(|engine| engine.name == name);
        if planned { EngineError::NotThere(name.to_owned()) } else { EngineError::Unknown(name.to_owned()) }
    })
}

/// The engine that images are looked for at.
pub fn with_images(choice: &EngineChoice) -> Result<EngineRef, EngineError> {
    match choice {
        EngineChoice::Named(name) => get(name),
        EngineChoice::Auto => {
            let found = all().into_iter().find(|engine| engine.abilities().local && engine.abilities().images);
            found.ok_or_else(|| EngineError::unable(EngineChoice::AUTO, "images"))
        }
    }
}

/// What policies are told of engines that can be named.
pub fn known() -> Vec<KnownEngine> {
    let ours = |engine: EngineRef| KnownEngine { name: engine.name().into(), images: engine.abilities().images };
    all().into_iter().map(ours).chain(PLANNED).collect()
}
