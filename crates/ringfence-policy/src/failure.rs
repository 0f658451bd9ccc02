//! Why there is no sandbox, as data: it crosses every boundary whole, and whoever shows it decides how the cure is written.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Guarantee;

/// A sandbox that could not be had, or that ended otherwise than it should.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// `None` where no engine was chosen, or the failure is nobody's own.
    pub engine: Option<String>,
    /// What was being done.
    pub step: Step,
    /// The promise that cannot be kept.
    pub guarantee: Option<Guarantee>,
    /// What went wrong, in words.
    pub message: String,
    /// Each of them helps by itself.
    pub cures: Vec<Cure>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// What was being done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Step {
    /// An engine was chosen.
    Choose,
    /// The engine was asked for its promises.
    Promise,
    /// What the sandbox is made from was looked up or made.
    Prepare,
    /// The sandbox was made.
    Start,
    /// The command was executed.
    Execute,
    /// The guest was waited for.
    Guest,
    /// The sandbox was there.
    Run,
    /// The sandbox, or what it left, was removed.
    Remove,
}

/// What helps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the sentence of a variant names what its fields hold")]
#[serde(rename_all = "kebab-case")]
pub enum Cure {
    /// Another value for a setting, by its key in a configuration file. Without one: any other that fits.
    Set { key: Cow<'static, str>, value: Option<Cow<'static, str>> },
    /// The same for the sandbox around this one.
    SetOutside { key: Cow<'static, str>, value: Cow<'static, str> },
    /// The standard image is to be built.
    BuildImage,
    /// Root prepares this host, once after each start of the machine.
    PrepareHost,
    /// What a person does outside of Ringfence, in words.
    Host(Cow<'static, str>),
}

impl Cure {
    /// Another value for this setting.
    pub fn set(key: &'static str, value: impl Into<Cow<'static, str>>) -> Cure {
        Cure::Set { key: key.into(), value: Some(value.into()) }
    }

    /// Another value than the one that was asked for.
    pub fn another(key: &'static str) -> Cure {
        Cure::Set { key: key.into(), value: None }
    }

    /// The policy can do without this promise.
    pub fn optional(guarantee: Guarantee) -> Cure {
        Cure::set("optional", guarantee.id())
    }

    /// What a person does outside of Ringfence.
    pub fn host(words: impl Into<Cow<'static, str>>) -> Cure {
        Cure::Host(words.into())
    }
}
