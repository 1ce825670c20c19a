//! Bytes between nodes: wire codec, QUIC control plane, bulk fabric, collectives.
