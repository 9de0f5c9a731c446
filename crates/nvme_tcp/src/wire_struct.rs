//! Structs that are bytes of a data structure: little-endian, without padding, each field at the offset beside it.

/// Declares such a struct. The compiler checks each offset and the size. `FIELDS` lists name, offset and size of every
/// field, for tests that hold documents against it.
macro_rules! wire_struct {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident, $size:literal bytes {
            $( $(#[$field_meta:meta])* $field:ident: $type:ty = $offset:literal, )*
        }
    ) => {
        $(#[$meta])*
        #[derive(
            Clone, Copy, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable,
            zerocopy::KnownLayout, zerocopy::Unaligned,
        )]
        #[repr(C)]
        $vis struct $name {
            $( $(#[$field_meta])* pub $field: $type, )*
        }

        impl $name {
            /// Name, offset and size in bytes of every field, in order.
            #[allow(dead_code)]
            pub const FIELDS: &'static [(&'static str, usize, usize)] = &[
                $( (stringify!($field), core::mem::offset_of!($name, $field), size_of::<$type>()), )*
            ];
        }

        const _: () = {
            assert!(size_of::<$name>() == $size, "the struct has another size on the wire");
            $( assert!(core::mem::offset_of!($name, $field) == $offset, "a field is at another offset"); )*
        };
    };
}

pub(crate) use wire_struct;
