//! The guest, through its one socket: as a bare process, and as process 1 of a box of every engine.
#![allow(clippy::unwrap_used)] // a test may; the setting for that does not see helpers of integration tests

mod commands;
mod files;
mod host;
mod life;
mod load;
mod walls;

use host::{Host, Place};

/// Makes a test of each function for each place.
#[macro_export]
macro_rules! everywhere {
    ($($test:ident)*) => {
        mod bare {
            $(#[test] fn $test() { super::$test($crate::Place::Bare) })*
        }
        mod native {
            $(#[test] fn $test() { super::$test($crate::Place::Box(ringfence_engine::engines::native::ENGINE)) })*
        }
        mod bubblewrap {
            $(#[test] fn $test() { super::$test($crate::Place::Box(ringfence_engine::engines::bubblewrap::ENGINE)) })*
        }
    };
}
