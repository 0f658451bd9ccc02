//! Skills: registered pieces of code with a source, a scan verdict and a history.

pub mod scan;
