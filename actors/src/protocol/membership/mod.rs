//! Who is there: watching, probing, accusing, and when an accusation costs the membership
//! (PROTOCOL.md §5).

mod accusations;
mod detector;
mod quarantine;

pub use accusations::{Accusations, Jury};
pub use detector::Detector;
pub use quarantine::Quarantine;
