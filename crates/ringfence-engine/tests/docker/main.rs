//! The Docker engine on a real daemon. Each test clears up what it made; the image is built from a program of this host.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod boxes;
mod dockerd;
mod faults;
mod files;
mod images;
mod limits;
mod network;
mod podman;
mod support;
mod volumes;
