//! What Identify says is where the kernel reads it, an initiator reads it back, and what cannot be worked with is named.

mod facts;

use nvme_tcp::identify::{
    ControllerFacts, ControllerInfo, ControllerInfoError, ControllerType, IDENTIFY_BYTES, NamespaceFacts,
    NamespaceInfo, NamespaceInfoError, namespace_ids,
};
use nvme_tcp::names::{DISCOVERY_NQN, Nqn, NqnError};

/// The answer with other bytes at a place.
fn changed(answer: &[u8], at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut answer = answer.to_vec();
    answer[at..at + bytes.len()].copy_from_slice(bytes);
    answer
}

mod controller {
    use super::*;
    use crate::facts::controller as facts;

    const BOOT_ID: u64 = u64::from_le_bytes([b'.'; 8]);

    #[test]
    fn fields_are_where_the_kernel_reads_them() {
        let bytes = facts().encode();
        assert_eq!(bytes.len(), IDENTIFY_BYTES);
        assert_eq!(&bytes[4..24], b"0123456789abcdef0123");
        assert_eq!(&bytes[24..31], b"Twill  ");
        assert_eq!((bytes[76], bytes[77], bytes[78]), (0b1010, 8, 7));
        assert_eq!(bytes[80..84], [0, 0, 2, 0]);
        assert_eq!((bytes[96], bytes[111]), (0b100_0001, 1));
        assert_eq!((bytes[386], bytes[387]), (0xf4, 1));
        assert_eq!((bytes[512], bytes[513], bytes[516]), (0x66, 0x44, 16));
        assert_eq!((bytes[520], bytes[525]), (0b11_1100, 0b111));
        assert_eq!(&bytes[768..787], b"nqn.2026-11.test:a\0");
        assert_eq!(u32::from_le_bytes(bytes[1792..1796].try_into().unwrap()), 516);
        assert_eq!(&bytes[3072..3077], b"TwFab");
    }

    #[test]
    fn an_initiator_reads_what_a_target_says() {
        let info = ControllerInfo::parse(&facts().encode()).unwrap();
        assert_eq!((info.serial.as_str(), info.model.as_str()), ("0123456789abcdef0123", "Twill"));
        assert_eq!((info.transfer_bytes_max, info.in_capsule_bytes), (Some(1 << 20), 8192));
        assert!(info.volatile_cache && info.reservations && info.write_zeroes && info.ana);
        assert_eq!((info.keep_alive_granularity_ms, info.quiesce_ms, info.async_events_max), (1000, 500, 4));
        let fabric = info.fabric.expect("a Twill target's");
        assert_eq!((fabric.version, fabric.boot_id, fabric.encode()), (0x2e2e, BOOT_ID, facts().capability));
        let other =
            ControllerInfo::parse(&ControllerFacts { capability: [0; 24], ..facts() }.encode()).unwrap();
        assert_eq!(other.fabric, None);
        let discovery = ControllerFacts {
            controller_type: ControllerType::Discovery,
            subsystem: Nqn::new(DISCOVERY_NQN).unwrap(),
            ..facts()
        };
        let info = ControllerInfo::parse(&discovery.encode()).unwrap();
        assert_eq!(info.controller_type, Some(ControllerType::Discovery));
        assert!(!info.reservations && !info.ana && info.namespace_id_max == 0);
        assert_eq!(info.fabric, None);
    }

    #[test]
    fn what_cannot_be_worked_with_is_named() {
        let good = facts().encode();
        let with = |at: usize, bytes: &[u8]| ControllerInfo::parse(&changed(&good, at, bytes));
        assert_eq!(with(512, &[0x77]), Err(ControllerInfoError::EntrySize));
        assert_eq!(with(513, &[0x33]), Err(ControllerInfoError::EntrySize));
        assert_eq!(with(536, &[0]), Err(ControllerInfoError::NoSgl));
        assert_eq!(with(768, b"x"), Err(ControllerInfoError::Name(NqnError::Beginning)));
        assert_eq!(with(1792, &[3, 0]), Err(ControllerInfoError::Capsule(3)));
        assert_eq!(with(1792, &[0xff; 4]), Err(ControllerInfoError::Capsule(u32::MAX)));
        assert_eq!(ControllerInfo::parse(&good[..100]), Err(ControllerInfoError::Length { found: 100 }));
        // A shift that overflows is no limit.
        assert_eq!(with(77, &[255]).unwrap().transfer_bytes_max, None);
        assert_eq!(with(77, &[51]).unwrap().transfer_bytes_max, Some(1 << 63));
        assert_eq!(with(77, &[52]).unwrap().transfer_bytes_max, None);
    }
}

mod namespace {
    use super::*;
    use crate::facts::namespace;

    fn facts() -> NamespaceFacts {
        NamespaceFacts { uuid: [0xcd; 16], ..namespace(0xab) }
    }

    #[test]
    fn fields_are_where_the_kernel_reads_them() {
        let bytes = facts().encode();
        assert_eq!(bytes.len(), IDENTIFY_BYTES);
        assert_eq!(bytes[..8], (1u64 << 20).to_le_bytes());
        assert_eq!((bytes[24], bytes[30], bytes[31], bytes[33]), (0b1_0010, 1, 0xff, 1));
        assert_eq!((bytes[46], bytes[64], bytes[66], bytes[72]), (64, 15, 15, 63));
        assert_eq!((bytes[92], bytes[104], bytes[130]), (1, 0xab, 12));
    }

    #[test]
    fn an_initiator_reads_what_a_target_says() {
        let info = NamespaceInfo::parse(&facts().encode()).unwrap();
        assert_eq!((info.blocks, info.block_log2, info.nguid), (1 << 20, 12, [0xab; 16]));
        assert_eq!((info.reservations, info.atomic_blocks_power_fail, info.boundary_blocks), (0xff, 1, 64));
        assert_eq!(NamespaceInfo::uuid(&namespace_ids(&facts())), Some([0xcd; 16]));
    }

    #[test]
    fn what_cannot_be_worked_with_is_named() {
        let good = facts().encode();
        let with = |at: usize, bytes: &[u8]| NamespaceInfo::parse(&changed(&good, at, bytes));
        assert_eq!(with(0, &[0; 8]), Err(NamespaceInfoError::Absent));
        assert_eq!(with(130, &[8]), Err(NamespaceInfoError::BlockSize(8)));
        assert_eq!(with(130, &[17]), Err(NamespaceInfoError::BlockSize(17)));
        assert_eq!(with(128, &[8, 0]), Err(NamespaceInfoError::Metadata(8)));
        assert_eq!(with(0, &[0xff; 8]), Err(NamespaceInfoError::Size(u64::MAX)));
        // The index of the format has its upper bits elsewhere: format 17, which is empty.
        assert_eq!(with(26, &[0b010_0001]), Err(NamespaceInfoError::BlockSize(0)));
        assert_eq!(NamespaceInfo::parse(&good[..9]), Err(NamespaceInfoError::Length { found: 9 }));
        for cut in 0..60 {
            let _ = NamespaceInfo::uuid(&namespace_ids(&facts())[..cut]);
        }
        assert_eq!(NamespaceInfo::uuid(&[9, 0, 0, 0, 3, 16, 0, 0]), None);
    }
}
