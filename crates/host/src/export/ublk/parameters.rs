//! From a volume to the parameters of its block device: pure.

use engine::limits::{BLOCK_BYTES, POOL_CLASS_BLOCKS_MAX};
use engine::volume::VolumeInfo;

use super::protocol::{Parameters, SECTOR_BYTES, attribute, part};

/// Largest request where stripes are small: what a pooled buffer holds.
const REQUEST_BYTES: u64 = (POOL_CLASS_BLOCKS_MAX * BLOCK_BYTES) as u64;

/// Largest request where one stripe takes more than that.
const LONG_REQUEST_BYTES: u64 = 4 << 20;

/// Longest range of one discard or of zeroes: long ones run as several requests, side by side.
const ZEROED_BYTES: u64 = 64 << 20;

/// The parameters of a volume's block device.
pub fn parameters(info: &VolumeInfo) -> Parameters {
    let request_bytes = u64::from(request_bytes_max(info));
    let zeroed_bytes =
        multiple_below(ZEROED_BYTES, info.io_opt_bytes).max(u64::from(info.physical_block_bytes));
    let read_only = if info.read_only { attribute::READ_ONLY } else { 0 };
    Parameters {
        bytes: size_of::<Parameters>() as u32,
        parts: part::BASIC | part::DISCARD | part::SEGMENT,
        attributes: attribute::VOLATILE_CACHE | attribute::FUA | read_only,
        logical_block_shift: shift(u64::from(info.logical_block_bytes)),
        physical_block_shift: shift(u64::from(info.physical_block_bytes)),
        io_min_shift: shift(u64::from(info.io_min_bytes)),
        io_opt_shift: shift(optimal_bytes(info)),
        request_sectors_max: sectors(request_bytes),
        sectors: info.size_bytes / SECTOR_BYTES,
        discard_granularity: discard_granularity(info),
        discard_sectors_max: sectors(zeroed_bytes),
        zeroes_sectors_max: sectors(zeroed_bytes),
        discard_segments_max: 1,
        // A request of scattered pages has a segment for each.
        segment_boundary_mask: u64::from(u32::MAX),
        segment_bytes_max: request_bytes.max(BLOCK_BYTES as u64) as u32,
        segments_max: u16::try_from(request_bytes / BLOCK_BYTES as u64 + 1).expect("at most 4 MiB"),
        ..Parameters::default()
    }
}

/// Largest request in bytes: whole stripes, so that the kernel does not split a write that needs no read.
pub fn request_bytes_max(info: &VolumeInfo) -> u32 {
    let stripe = info.io_opt_bytes.max(1);
    let bytes = if stripe <= REQUEST_BYTES {
        multiple_below(REQUEST_BYTES, stripe)
    } else if stripe <= LONG_REQUEST_BYTES {
        stripe
    } else {
        multiple_below(LONG_REQUEST_BYTES, u64::from(info.io_min_bytes))
    };
    // The kernel accepts no less than a page, and only whole logical blocks.
    let bytes = multiple_below(bytes, u64::from(info.physical_block_bytes)).max(BLOCK_BYTES as u64);
    u32::try_from(bytes).expect("at most 4 MiB")
}

/// The optimal size of the block device. ublk has powers of two only: the stripe if it is one, else the chunk, since with any
/// other power file systems would lay out their data across stripes.
pub fn optimal_bytes(info: &VolumeInfo) -> u64 {
    let minimum = 1 << shift(u64::from(info.io_min_bytes));
    if info.io_opt_bytes.is_power_of_two() { info.io_opt_bytes.max(minimum) } else { minimum }
}

/// Whole stripes are discarded; the kernel rounds with powers of two.
fn discard_granularity(info: &VolumeInfo) -> u32 {
    let stripe = u32::try_from(info.io_opt_bytes).unwrap_or(0);
    if stripe.is_power_of_two() { stripe.max(info.physical_block_bytes) } else { info.physical_block_bytes }
}

/// Logarithm of the largest power of two that divides `bytes`.
fn shift(bytes: u64) -> u8 {
    u8::try_from(bytes.trailing_zeros()).expect("at most 64")
}

fn sectors(bytes: u64) -> u32 {
    u32::try_from(bytes / SECTOR_BYTES).expect("at most 64 MiB")
}

/// The largest multiple of `unit` that is no more than `bytes`; `bytes` if there is none.
fn multiple_below(bytes: u64, unit: u64) -> u64 {
    if unit == 0 || unit > bytes { bytes } else { bytes - bytes % unit }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;

    fn info(chunk: u64, data_chunks: u64) -> VolumeInfo {
        VolumeInfo {
            size_bytes: 1 << 30,
            logical_block_bytes: 512,
            physical_block_bytes: 4096,
            io_min_bytes: u32::try_from(chunk).unwrap(),
            io_opt_bytes: chunk * data_chunks,
            read_only: false,
        }
    }

    #[test]
    fn requests_are_whole_stripes_where_they_can_be() {
        // chunk, data chunks: largest request, optimal size shown, all in KiB
        let table = [
            (64, 4, 1024, 256),
            (64, 5, 960, 64),
            (64, 3, 960, 64),
            (512, 4, 2048, 2048),
            (512, 5, 2560, 512),
            (512, 16, 4096, 8192),
            (512, 17, 4096, 512),
            (4, 2, 1024, 8),
            (65536, 3, 4096, 65536),
        ];
        for (chunk, data_chunks, request, optimal) in table {
            let info = info(chunk * KIB, data_chunks);
            assert_eq!(u64::from(request_bytes_max(&info)), request * KIB, "{chunk} KiB x {data_chunks}");
            assert_eq!(optimal_bytes(&info), optimal * KIB, "{chunk} KiB x {data_chunks}");
        }
    }

    #[test]
    fn no_parameter_is_one_that_the_kernel_refuses() {
        for chunk in [4, 12, 64, 512, 1 << 20] {
            for data_chunks in 1..40 {
                let said = parameters(&info(chunk * KIB, data_chunks));
                let request = u64::from(said.request_sectors_max) * SECTOR_BYTES;
                assert!(
                    request >= 4096 && request.is_multiple_of(4096),
                    "{chunk} KiB x {data_chunks}: {said:?}"
                );
                assert!(said.discard_granularity.is_power_of_two() && said.discard_granularity >= 4096);
                assert!(said.zeroes_sectors_max >= 8 && said.discard_segments_max == 1);
                assert!(said.segment_bytes_max >= 4096 && said.segments_max > 0);
                assert!((12..32).contains(&said.io_min_shift) && said.io_opt_shift >= said.io_min_shift);
            }
        }
    }

    #[test]
    fn a_read_only_volume_is_a_read_only_device() {
        let said = parameters(&VolumeInfo { read_only: true, ..info(64 * KIB, 4) });
        assert_eq!(said.attributes & attribute::READ_ONLY, attribute::READ_ONLY);
        let native = VolumeInfo { logical_block_bytes: 4096, ..info(64 * KIB, 4) };
        assert_eq!(parameters(&native).logical_block_shift, 12);
    }
}
