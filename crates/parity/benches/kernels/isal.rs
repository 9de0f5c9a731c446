//! The same operations by ISA-L, loaded at run time.
//!
//! `ISAL_LIBRARY` names another file than the system's `libisal.so.2`.

use std::ffi::{c_int, c_uchar, c_void};

use libloading::Library;

use crate::{INDEX, Operation, Stripe, WIDTH};

type Generate = unsafe extern "C" fn(c_int, c_int, *mut *mut c_void) -> c_int;
type InitTables = unsafe extern "C" fn(c_int, c_int, *mut c_uchar, *mut c_uchar);
type Encode = unsafe extern "C" fn(c_int, c_int, c_int, *mut c_uchar, *mut *mut c_uchar, *mut *mut c_uchar);
type Update = unsafe extern "C" fn(c_int, c_int, c_int, c_int, *mut c_uchar, *mut c_uchar, *mut *mut c_uchar);

/// The functions in use, of `raid.h` and `erasure_code.h`.
pub struct Isal {
    xor_gen: Generate,
    pq_gen: Generate,
    ec_init_tables: InitTables,
    ec_encode_data: Encode,
    ec_encode_data_update: Update,
    _library: Library,
}

/// What a user of ISA-L computes once for a layout and a loss.
pub struct Prepared {
    tables: Vec<u8>,
    /// For updates: ISA-L takes the difference of old and new, not both.
    difference: Vec<u8>,
    difference_start: usize,
}

impl Isal {
    pub fn open() -> Result<Self, libloading::Error> {
        let path = std::env::var_os("ISAL_LIBRARY").unwrap_or_else(|| "libisal.so.2".into());
        // SAFETY: loading ISA-L runs no code but its own CPU dispatch; the types are those of its headers.
        unsafe {
            let library = Library::new(path)?;
            Ok(Self {
                xor_gen: *library.get(b"xor_gen")?,
                pq_gen: *library.get(b"pq_gen")?,
                ec_init_tables: *library.get(b"ec_init_tables")?,
                ec_encode_data: *library.get(b"ec_encode_data")?,
                ec_encode_data_update: *library.get(b"ec_encode_data_update")?,
                _library: library,
            })
        }
    }

    pub fn prepare(&self, operation: Operation, chunk: usize) -> Prepared {
        let mut matrix = matrix(operation);
        let rows = matrix.len();
        let sources = matrix.first().map_or(0, Vec::len);
        let mut matrix: Vec<u8> = matrix.drain(..).flatten().collect();
        let mut tables = vec![0; 32 * sources * rows];
        if rows > 0 {
            // SAFETY: the matrix has rows * sources bytes, the tables 32 times as many.
            unsafe {
                (self.ec_init_tables)(
                    sources as c_int,
                    rows as c_int,
                    matrix.as_mut_ptr(),
                    tables.as_mut_ptr(),
                );
            }
        }
        let needs_difference = operation == Operation::UpdatePq;
        let difference = vec![0u8; if needs_difference { chunk + 64 } else { 64 }];
        let difference_start = difference.as_ptr().align_offset(64);
        Prepared { tables, difference, difference_start }
    }

    pub fn call(&self, prepared: &mut Prepared, operation: Operation, stripe: &mut Stripe) {
        let len = stripe.sources[0].len() as c_int;
        let (k, rows) = (stripe.sources.len(), stripe.outputs.len());
        let mut pointers = [std::ptr::null_mut::<c_uchar>(); WIDTH + 2];
        for (pointer, source) in pointers.iter_mut().zip(&stripe.sources) {
            *pointer = source.as_ptr().cast_mut(); // Sources are only read.
        }
        for (pointer, output) in pointers[k..].iter_mut().zip(&mut stripe.outputs) {
            *pointer = output.as_mut_ptr();
        }
        let vectors = (k + rows) as c_int;
        let tables = prepared.tables.as_mut_ptr();
        // SAFETY: `pointers` are the stripe's sources and then its outputs, page-aligned and `len` bytes each; the
        // tables are of this operation's matrix; the difference has room for a chunk at a 64-byte boundary.
        let failed = unsafe {
            let all = pointers.as_mut_ptr();
            match operation {
                Operation::EncodeP | Operation::RecoverFromP => (self.xor_gen)(vectors, len, all.cast()),
                Operation::EncodePq => (self.pq_gen)(vectors, len, all.cast()),
                Operation::UpdateP => {
                    // In place: the output is its own source.
                    let mut vectors = [pointers[0], pointers[1], pointers[2], pointers[2]];
                    (self.xor_gen)(4, len, vectors.as_mut_ptr().cast())
                }
                Operation::UpdatePq => {
                    let difference = prepared.difference.as_mut_ptr().add(prepared.difference_start);
                    let mut vectors = [pointers[0], pointers[1], difference];
                    let failed = (self.xor_gen)(3, len, vectors.as_mut_ptr().cast());
                    let (width, index) = (WIDTH as c_int, INDEX as c_int);
                    (self.ec_encode_data_update)(len, width, 2, index, tables, difference, all.add(2));
                    failed
                }
                _ => {
                    (self.ec_encode_data)(len, k as c_int, rows as c_int, tables, all, all.add(k));
                    0
                }
            }
        };
        assert_eq!(failed, 0, "ISA-L refused");
    }
}

/// The coefficient of each source in each output, for the operations that ISA-L does as erasure coding.
fn matrix(operation: Operation) -> Vec<Vec<u8>> {
    let q_row: Vec<u8> = (0..WIDTH).map(power).collect();
    match operation {
        Operation::EncodeQ => vec![q_row],
        Operation::UpdatePq => vec![vec![1; WIDTH], q_row],
        Operation::DeltaPq => {
            let changed = [0, 1, 2].map(|i| power(INDEX - i));
            let twice = changed.into_iter().flat_map(|c| [c, c]);
            vec![vec![1, 1, 1, 1, 1, 1, 1, 0], twice.chain([0, 1]).collect()]
        }
        Operation::RecoverFromQ => {
            let divisor = inverse(power(INDEX));
            let known = (0..WIDTH).filter(|i| *i != INDEX).map(power).chain([1]);
            vec![known.map(|c| multiply(c, divisor)).collect()]
        }
        Operation::RecoverTwo => {
            let (x, y) = (power(INDEX), power(INDEX + 1));
            let of_q = inverse(x ^ y);
            let row = |own_other: u8| -> Vec<u8> {
                let of_p = multiply(own_other, of_q);
                let known = (0..WIDTH).filter(|i| *i != INDEX && *i != INDEX + 1);
                known.map(|i| of_p ^ multiply(power(i), of_q)).chain([of_p, of_q]).collect()
            };
            vec![row(y), row(x)]
        }
        _ => Vec::new(),
    }
}

fn multiply(a: u8, b: u8) -> u8 {
    (0..8).rev().fold(0u8, |product, bit| {
        let reduction = if product & 0x80 != 0 { 0x1d } else { 0 };
        (product << 1) ^ reduction ^ (if b >> bit & 1 == 1 { a } else { 0 })
    })
}

fn power(exponent: usize) -> u8 {
    (0..exponent).fold(1, |power, _| multiply(power, 2))
}

fn inverse(a: u8) -> u8 {
    (1..=255).find(|b| multiply(a, *b) == 1).expect("not zero")
}
