//! What formats on disk and on the wire have in common: [`byte_struct!`] declares a struct by the table of its bytes, and
//! [`Checksum`] is the CRC-32C of Twill's own formats and of NVMe over TCP.

#![forbid(unsafe_code)]

mod checksum;

pub use checksum::Checksum;

/// Declares structs that are bytes: little-endian, without padding, each by a table as a specification draws it.
///
/// ```
/// use byte_struct::byte_struct;
/// use zerocopy::little_endian::U32;
///
/// byte_struct! {
///     /// What each block begins with.
///     pub struct Start, 16 bytes {
///         0   8  magic: bytes,       /// "Example\0"
///         8   4  version: U32,       /// 1
///         12  4  checksum: U32,      /// CRC-32C of the block, this field as 0
///     }
/// }
/// assert_eq!(Start::FIELDS, [("magic", 0, 8), ("version", 8, 4), ("checksum", 12, 4)]);
/// ```
///
/// A row is offset, size, name, type, and after the comma what the field means. The type is a number of `zerocopy`'s
/// `little_endian`, `u8`, another such struct, an array of these, or `bytes`: as many bytes as the size says. The compiler
/// checks that each field stands at its offset and has its size, and that the struct ends where its table does.
/// `FIELDS` lists name, offset and size of every field; tests compare it with the tables of `docs/formats.md`.
#[macro_export]
macro_rules! byte_struct {
    ($(
        $(#[$meta:meta])*
        $vis:vis struct $name:ident, $bytes:literal bytes {
            $( $offset:literal $size:literal $field:ident: $type:tt, $(#[$meaning:meta])* )*
        }
    )*) => {$(
        $(#[$meta])*
        #[derive(
            Clone, Copy, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable,
            zerocopy::KnownLayout, zerocopy::Unaligned,
        )]
        #[repr(C)]
        $vis struct $name {
            $( $(#[$meaning])* pub $field: $crate::byte_struct!(@type $type, $size), )*
        }

        impl $name {
            /// Name, offset and size in bytes of every field, in order.
            #[allow(dead_code)]
            pub const FIELDS: &'static [(&'static str, usize, usize)] =
                &[$( (stringify!($field), $offset, $size), )*];
        }

        const _: () = {
            assert!(size_of::<$name>() == $bytes, "the struct has another size than its table");
            $(
                assert!(core::mem::offset_of!($name, $field) == $offset, "a field is at another offset");
                assert!(size_of::<$crate::byte_struct!(@type $type, $size)>() == $size, "a field has another size");
            )*
        };
    )*};
    (@type bytes, $size:literal) => { [u8; $size] };
    (@type $type:tt, $size:literal) => { $type };
}
