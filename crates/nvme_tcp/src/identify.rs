//! Identify: what a controller and its namespaces are, built by a target and read by an initiator.
//!
//! What is built is true of the thing served, or 0, which the specification reads as "not told". What is read is another
//! machine's word: sizes and shifts are checked before anything is computed with them.

mod controller;
mod namespace;

pub use controller::{
    CAPABILITY_BYTES, ControllerFacts, ControllerInfo, ControllerInfoError, ControllerType, VERSION,
};
pub use namespace::{NamespaceFacts, NamespaceInfo, NamespaceInfoError, WriteHints, namespace_ids};

pub(crate) use namespace::{active_list, independent, nvm_controller};

/// Bytes of every answer to Identify.
pub const IDENTIFY_BYTES: usize = 4096;

/// What Identify asks for, by the number that command dword 10 has.
pub mod cns {
    /// A namespace.
    pub const NAMESPACE: u8 = 0x00;
    /// The controller.
    pub const CONTROLLER: u8 = 0x01;
    /// Ids of the namespaces that are there.
    pub const ACTIVE_NAMESPACES: u8 = 0x02;
    /// Identifiers of a namespace.
    pub const NAMESPACE_IDS: u8 = 0x03;
    /// What the command set adds to a namespace.
    pub const COMMAND_SET_NAMESPACE: u8 = 0x05;
    /// What the command set adds to the controller.
    pub const COMMAND_SET_CONTROLLER: u8 = 0x06;
    /// Ids of the namespaces of a command set.
    pub const COMMAND_SET_ACTIVE_NAMESPACES: u8 = 0x07;
    /// What a namespace is, whatever its command set.
    pub const INDEPENDENT_NAMESPACE: u8 = 0x08;
    /// Which command sets there are.
    pub const COMMAND_SETS: u8 = 0x1c;
}
