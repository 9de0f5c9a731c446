//! The groups of DH-HMAC-CHAP: finite fields of RFC 7919, generator 2.
//!
//! Exponentiation takes the same time for each private value (crypto-bigint's Montgomery form with a bounded exponent).

use crypto_bigint::modular::{BoxedMontyForm, BoxedMontyParams};
use crypto_bigint::{BoxedUint, Odd, Resize as _};
use zeroize::Zeroizing;

/// A group that NVMe names by a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DhGroup {
    /// Number 0: no exchange of keys. With a recording of the messages, secrets can be tried one by one.
    Null,
    /// Number 1, 256 bytes.
    Ffdhe2048,
    /// Number 2, 384 bytes.
    Ffdhe3072,
    /// Number 3, 512 bytes.
    Ffdhe4096,
    /// Number 4, 768 bytes.
    Ffdhe6144,
    /// Number 5, 1024 bytes.
    Ffdhe8192,
}

/// Random bytes that a private value is made of: more than twice the strength of the largest group.
pub const PRIVATE_BYTES: usize = 64;

/// A public value that no honest peer sends: of another length, or one of those that give the shared value away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer's Diffie-Hellman value is not one of the group")]
pub struct NotOfTheGroup;

/// One side's private and public value, for one exchange.
pub struct DhKeys {
    group: DhGroup,
    private: Zeroizing<BoxedUint>,
    public: Vec<u8>,
}

impl DhGroup {
    /// All that authentication may use, those a new connection should use first: strong enough and quick, then stronger,
    /// then the weaker ones.
    pub const BY_PREFERENCE: [DhGroup; 6] = [
        DhGroup::Ffdhe3072,
        DhGroup::Ffdhe4096,
        DhGroup::Ffdhe6144,
        DhGroup::Ffdhe8192,
        DhGroup::Ffdhe2048,
        DhGroup::Null,
    ];

    /// The group of a number; `None` if there is none.
    #[must_use]
    pub fn from_id(id: u8) -> Option<DhGroup> {
        DhGroup::BY_PREFERENCE.into_iter().find(|group| group.id() == id)
    }

    /// Its number on the wire.
    #[must_use]
    pub fn id(self) -> u8 {
        match self {
            DhGroup::Null => 0,
            DhGroup::Ffdhe2048 => 1,
            DhGroup::Ffdhe3072 => 2,
            DhGroup::Ffdhe4096 => 3,
            DhGroup::Ffdhe6144 => 4,
            DhGroup::Ffdhe8192 => 5,
        }
    }

    /// Bytes of a public and of the shared value.
    #[must_use]
    pub fn value_bytes(self) -> usize {
        match self {
            DhGroup::Null => 0,
            DhGroup::Ffdhe2048 => 256,
            DhGroup::Ffdhe3072 => 384,
            DhGroup::Ffdhe4096 => 512,
            DhGroup::Ffdhe6144 => 768,
            DhGroup::Ffdhe8192 => 1024,
        }
    }

    fn bits(self) -> u32 {
        u32::try_from(self.value_bytes() * 8).expect("at most 8192")
    }

    /// The prime; `None` of the null group.
    fn prime(self) -> Option<Odd<BoxedUint>> {
        // To the last digits of e a number is added that makes it a prime.
        let last = match self {
            DhGroup::Null => return None,
            DhGroup::Ffdhe2048 => "61285c97",
            DhGroup::Ffdhe3072 => "66c62e37",
            DhGroup::Ffdhe4096 => "5e655f6a",
            DhGroup::Ffdhe6144 => "d0e40e65",
            DhGroup::Ffdhe8192 => "c5c6424c",
        };
        let digits = self.value_bytes() * 2 - ONES.len() * 2 - last.len();
        let hex = [ONES, &DIGITS_OF_E[..digits], last, ONES].concat();
        let prime = BoxedUint::from_be_hex(&hex, self.bits()).into_option().expect("hexadecimal digits");
        Some(Odd::new(prime).into_option().expect("an odd prime"))
    }
}

impl DhKeys {
    /// Keys of `random` bytes; `None` of the null group, which has none.
    #[must_use]
    pub fn new(group: DhGroup, random: &[u8; PRIVATE_BYTES]) -> Option<DhKeys> {
        let parameters = BoxedMontyParams::new(group.prime()?);
        let bits = u32::try_from(PRIVATE_BYTES * 8).expect("512");
        let private = BoxedUint::from_be_slice(random, bits).expect("64 bytes are 512 bits");
        let base = BoxedMontyForm::new(BoxedUint::from(2u8).resize(group.bits()), &parameters);
        let public = base.pow_bounded_exp(&private, bits).retrieve().to_be_bytes().into_vec();
        Some(DhKeys { group, private: Zeroizing::new(private), public })
    }

    /// What the peer is sent.
    #[must_use]
    pub fn public(&self) -> &[u8] {
        &self.public
    }

    /// The value shared with the peer that sent `public`, with its leading zeroes.
    ///
    /// # Errors
    /// [`NotOfTheGroup`]: 0, 1 and -1 would make the shared value known to all.
    pub fn agree(&self, public: &[u8]) -> Result<Zeroizing<Vec<u8>>, NotOfTheGroup> {
        let prime = self.group.prime().ok_or(NotOfTheGroup)?;
        if public.len() != self.group.value_bytes() {
            return Err(NotOfTheGroup);
        }
        let bits = self.group.bits();
        let value = BoxedUint::from_be_slice(public, bits).map_err(|_| NotOfTheGroup)?;
        let one = BoxedUint::one().resize(bits);
        let minus_one = prime.as_ref().wrapping_sub(&one);
        if value <= one || value >= minus_one {
            return Err(NotOfTheGroup);
        }
        let base = BoxedMontyForm::new(value, &BoxedMontyParams::new(prime));
        let bits = u32::try_from(PRIVATE_BYTES * 8).expect("512");
        let shared = Zeroizing::new(base.pow_bounded_exp(&self.private, bits).retrieve());
        Ok(Zeroizing::new(shared.to_be_bytes().into_vec()))
    }
}

/// A prime begins and ends with 64 ones.
const ONES: &str = "ffffffffffffffff";
/// Between these a prime has the binary digits of e, from the first on, but for the last 32 of them.
const DIGITS_OF_E: &str = "\
    adf85458a2bb4a9aafdc5620273d3cf1d8b9c583ce2d3695a9e13641146433fbcc939dce249b3ef97d2fe363630c75d8f681b202aec4\
    617ad3df1ed5d5fd65612433f51f5f066ed0856365553ded1af3b557135e7f57c935984f0c70e0e68b77e2a689daf3efe8721df158a1\
    36ade73530acca4f483a797abc0ab182b324fb61d108a94bb2c8e3fbb96adab760d7f4681d4f42a3de394df4ae56ede76372bb190b07\
    a7c8ee0a6d709e02fce1cdf7e2ecc03404cd28342f619172fe9ce98583ff8e4f1232eef28183c3fe3b1b4c6fad733bb5fcbc2ec22005\
    c58ef1837d1683b2c6f34a26c1b2effa886b4238611fcfdcde355b3b6519035bbc34f4def99c023861b46fc9d6e6c9077ad91d2691f7\
    f7ee598cb0fac186d91caefe130985139270b4130c93bc437944f4fd4452e2d74dd364f2e21e71f54bff5cae82ab9c9df69ee86d2bc5\
    22363a0dabc521979b0deada1dbf9a42d5c4484e0abcd06bfa53ddef3c1b20ee3fd59d7c25e41d2b669e1ef16e6f52c3164df4fb7930\
    e9e4e58857b6ac7d5f42d69f6d187763cf1d5503400487f55ba57e31cc7a7135c886efb4318aed6a1e012d9e6832a907600a918130c4\
    6dc778f971ad0038092999a333cb8b7a1a1db93d7140003c2a4ecea9f98d0acc0a8291cdcec97dcf8ec9b55a7f88a46b4db5a851f441\
    82e1c68a007e5e0dd9020bfd64b645036c7a4e677d2c38532a3a23ba4442caf53ea63bb454329b7624c8917bdd64b1c0fd4cb38e8c33\
    4c701c3acdad0657fccfec719b1f5c3e4e46041f388147fb4cfdb477a52471f7a9a96910b855322edb6340d8a00ef092350511e30abe\
    c1fff9e3a26e7fb29f8c183023c3587e38da0077d9b4763e4e4b94b2bbc194c6651e77caf992eeaac0232a281bf6b3a739c122611682\
    0ae8db5847a67cbef9c9091b462d538cd72b03746ae77f5e62292c311562a846505dc82db854338ae49f5235c95b91178ccf2dd5cace\
    f403ec9d1810c6272b045b3b71f9dc6b80d63fdd4a8e9adb1e6962a69526d43161c1a41d570d7938dad4a40e329ccff46aaa36ad004c\
    f600c8381e425a31d951ae64fdb23fcec9509d43687feb69edd1cc5e0b8cc3bdf64b10ef86b63142a3ab8829555b2f747c932665cb2c\
    0f1cc01bd70229388839d2af05e454504ac78b7582822846c0ba35c35f5c59160cc046fd8251541fc68c9c86b022bb7099876a460e74\
    51a8a93109703fee1c217e6c3826e52c51aa691e0e423cfc99e9e31650c1217b624816cdad9a95f9d5b8019488d9c0a0a1fe3075a577\
    e23183f81d4a3f2fa4571efc8ce0ba8a4fe8b6855dfe72b0a66eded2fbabfbe58a30fafabe1c5d71a87e2f741ef8c1fe86fea6bbfde5\
    30677f0d97d11d49f7a8443d0822e506a9f4614e011e2a94838ff88cd68c8bb7";

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 7919 defines its primes by the digits of e: p = 2^b - 2^(b-64) + (floor(2^(b-130) e) + X) 2^64 - 1. This computes
    /// them so, independent of the constants.
    #[test]
    fn primes_are_those_of_rfc_7919() {
        // e - 2 as a binary fraction of 32-bit digits: the sum of 1/k! for k from 2 on.
        const DIGITS: usize = 8192 / 32 + 4;
        let mut fraction = vec![0u32; DIGITS];
        let mut term = vec![0u32; DIGITS];
        term[0] = 1 << 31;
        for k in 3u64.. {
            let mut carry = 0;
            for (sum, digit) in fraction.iter_mut().zip(&term).rev() {
                let total = u64::from(*sum) + u64::from(*digit) + carry;
                (*sum, carry) = (total as u32, total >> 32);
            }
            let mut remainder = 0;
            for digit in &mut term {
                let dividend = remainder << 32 | u64::from(*digit);
                (*digit, remainder) = ((dividend / k) as u32, dividend % k);
            }
            if term.iter().all(|digit| *digit == 0) {
                break;
            }
        }
        for (group, x) in [
            (DhGroup::Ffdhe2048, 560_316u32),
            (DhGroup::Ffdhe3072, 2_625_351),
            (DhGroup::Ffdhe4096, 5_736_041),
            (DhGroup::Ffdhe6144, 15_705_020),
            (DhGroup::Ffdhe8192, 10_965_728),
        ] {
            let bits = group.bits();
            let mut bytes = vec![0u8; 4];
            bytes[3] = 2;
            bytes.extend(fraction.iter().flat_map(|digit| digit.to_be_bytes()));
            let scaled = BoxedUint::from_be_slice(&bytes, u32::try_from(bytes.len() * 8).unwrap()).unwrap();
            let below = u32::try_from(DIGITS * 32).unwrap() - (bits - 130);
            let number = |value: BoxedUint| value.resize(bits);
            let middle = number(scaled.shr(below)).wrapping_add(number(BoxedUint::from(x)));
            let one = number(BoxedUint::one());
            let top = one.shl(bits - 64).wrapping_neg();
            let expected = top.wrapping_add(middle.shl(64)).wrapping_sub(&one);
            assert_eq!(group.prime().unwrap().as_ref(), &expected, "{group:?}");
        }
    }

    #[test]
    fn both_sides_agree_in_every_group_and_know_what_is_not_of_it() {
        for group in DhGroup::BY_PREFERENCE {
            assert_eq!(DhGroup::from_id(group.id()), Some(group));
            let Some(a) = DhKeys::new(group, &[0x5a; PRIVATE_BYTES]) else {
                assert_eq!(group, DhGroup::Null);
                continue;
            };
            let b = DhKeys::new(group, &[0xc3; PRIVATE_BYTES]).expect("keys");
            assert_eq!(a.public().len(), group.value_bytes());
            let shared = a.agree(b.public()).expect("shared");
            assert_eq!(shared, b.agree(a.public()).expect("shared"));
            assert_eq!(shared.len(), group.value_bytes());

            let bytes = group.value_bytes();
            let mut one = vec![0; bytes];
            one[bytes - 1] = 1;
            let prime = group.prime().expect("a prime").as_ref().to_be_bytes().into_vec();
            let mut minus_one = prime.clone();
            minus_one[bytes - 1] -= 1;
            for bad in
                [vec![0; bytes], one, minus_one, prime, vec![0xff; bytes], vec![2; bytes - 1], Vec::new()]
            {
                assert_eq!(a.agree(&bad), Err(NotOfTheGroup), "{group:?}");
            }
        }
    }
}
