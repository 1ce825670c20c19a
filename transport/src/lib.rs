//! Bytes between nodes: wire codec, QUIC control plane, bulk fabric, collectives.
//!
//! Nothing is here yet: a run has one node today, and its actors talk through mailboxes. The ring
//! brings the codec, the control plane and the bulk fabric, behind the messages of
//! `planaria_actors::protocol`.
