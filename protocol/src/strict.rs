//! Reading JSON so that a struct comes from an object and from nothing else.
//!
//! What is derived for a struct also takes a list, with the fields in the order
//! of the source: `["2.0",7,"ade/ping"]` would be a request, `["done"]` an
//! event. Everything that is read from a wire or a file goes through here
//! instead of through `serde_json` itself: [`from_str`], [`from_slice`] and
//! [`from_value`] wrap its deserializer in one that offers no list to a struct,
//! at any depth.
//!
//! What it does not do: look into what a reader keeps raw, which is read
//! through here on its own, and below the fields of an enum with an inner tag,
//! which `serde` holds back and reads by itself.

use std::fmt;

use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, EnumAccess, Error, MapAccess, SeqAccess,
    Unexpected, VariantAccess, Visitor,
};
use serde_json::Value;

/// Reads a value from JSON text.
///
/// # Errors
/// The text is not JSON, or not that of a `T`.
pub fn from_str<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, serde_json::Error> {
    let mut inner = serde_json::Deserializer::from_str(text);
    let value = T::deserialize(Strict(&mut inner))?;
    inner.end()?;
    Ok(value)
}

/// Reads a value from the bytes of JSON text.
///
/// # Errors
/// The bytes are not JSON, or not that of a `T`.
pub fn from_slice<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, serde_json::Error> {
    let mut inner = serde_json::Deserializer::from_slice(bytes);
    let value = T::deserialize(Strict(&mut inner))?;
    inner.end()?;
    Ok(value)
}

/// Reads a value from JSON that is parsed already.
///
/// # Errors
/// It is not that of a `T`.
pub fn from_value<T: for<'a> Deserialize<'a>>(value: Value) -> Result<T, serde_json::Error> {
    T::deserialize(Strict(value))
}

/// How the description of an enum with an inner tag begins. Such an enum asks
/// for any value, as [`Value`] does, and would take its tag from a list.
const TAGGED: &str = "internally tagged enum";

fn is_tagged<'de>(visitor: &impl Visitor<'de>) -> bool {
    struct Described<'a, V>(&'a V);
    impl<'de, V: Visitor<'de>> fmt::Display for Described<'_, V> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.0.expecting(f)
        }
    }
    /// Compares what is written with what is left of a text: every element of a
    /// free value asks, so nothing is allocated for it.
    struct Begins(&'static [u8]);
    impl fmt::Write for Begins {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            let length = text.len().min(self.0.len());
            let (now, then) = self.0.split_at(length);
            self.0 = then;
            if now == &text.as_bytes()[..length] {
                Ok(())
            } else {
                Err(fmt::Error)
            }
        }
    }
    let mut begins = Begins(TAGGED.as_bytes());
    fmt::write(&mut begins, format_args!("{}", Described(visitor))).is_ok() && begins.0.is_empty()
}

/// A deserializer, or a seed or access of one, whose structs are objects.
struct Strict<T>(T);

/// A visitor of one, and whether it is a struct's.
struct Guarded<V> {
    visitor: V,
    of_struct: bool,
}

fn open<V>(visitor: V) -> Guarded<V> {
    Guarded {
        visitor,
        of_struct: false,
    }
}

fn closed<V>(visitor: V) -> Guarded<V> {
    Guarded {
        visitor,
        of_struct: true,
    }
}

macro_rules! pass {
    ($($method:ident),* $(,)?) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
            self.0.$method(open(visitor))
        })*
    };
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Strict<D> {
    type Error = D::Error;

    pass!(
        deserialize_bool,
        deserialize_i8,
        deserialize_i16,
        deserialize_i32,
        deserialize_i64,
        deserialize_i128,
        deserialize_u8,
        deserialize_u16,
        deserialize_u32,
        deserialize_u64,
        deserialize_u128,
        deserialize_f32,
        deserialize_f64,
        deserialize_char,
        deserialize_str,
        deserialize_string,
        deserialize_bytes,
        deserialize_byte_buf,
        deserialize_option,
        deserialize_unit,
        deserialize_seq,
        deserialize_map,
        deserialize_identifier,
        deserialize_ignored_any,
    );

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        let of_struct = is_tagged(&visitor);
        self.0.deserialize_any(Guarded { visitor, of_struct })
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_unit_struct(name, open(visitor))
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_newtype_struct(name, open(visitor))
    }

    fn deserialize_tuple<V: Visitor<'de>>(
        self,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_tuple(len, open(visitor))
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_tuple_struct(name, len, open(visitor))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_struct(name, fields, closed(visitor))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_enum(name, variants, open(visitor))
    }

    fn is_human_readable(&self) -> bool {
        self.0.is_human_readable()
    }
}

macro_rules! hand_on {
    ($($method:ident: $kind:ty),* $(,)?) => {
        $(fn $method<E: Error>(self, value: $kind) -> Result<V::Value, E> {
            self.visitor.$method(value)
        })*
    };
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Guarded<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.visitor.expecting(f)
    }

    hand_on!(
        visit_bool: bool,
        visit_i8: i8,
        visit_i16: i16,
        visit_i32: i32,
        visit_i64: i64,
        visit_i128: i128,
        visit_u8: u8,
        visit_u16: u16,
        visit_u32: u32,
        visit_u64: u64,
        visit_u128: u128,
        visit_f32: f32,
        visit_f64: f64,
        visit_char: char,
        visit_str: &str,
        visit_borrowed_str: &'de str,
        visit_string: String,
        visit_bytes: &[u8],
        visit_borrowed_bytes: &'de [u8],
        visit_byte_buf: Vec<u8>,
    );

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.visitor.visit_none()
    }

    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        self.visitor.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        self.visitor.visit_some(Strict(inner))
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        self.visitor.visit_newtype_struct(Strict(inner))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<V::Value, A::Error> {
        if self.of_struct {
            return Err(Error::invalid_type(Unexpected::Seq, &self.visitor));
        }
        self.visitor.visit_seq(Strict(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, entries: A) -> Result<V::Value, A::Error> {
        self.visitor.visit_map(Strict(entries))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, value: A) -> Result<V::Value, A::Error> {
        self.visitor.visit_enum(Strict(value))
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Strict<S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, inner: D) -> Result<S::Value, D::Error> {
        self.0.deserialize(Strict(inner))
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Strict<A> {
    type Error = A::Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        self.0.next_element_seed(Strict(seed))
    }

    fn size_hint(&self) -> Option<usize> {
        self.0.size_hint()
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Strict<A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        self.0.next_key_seed(Strict(seed))
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        self.0.next_value_seed(Strict(seed))
    }

    fn size_hint(&self) -> Option<usize> {
        self.0.size_hint()
    }
}

impl<'de, A: EnumAccess<'de>> EnumAccess<'de> for Strict<A> {
    type Error = A::Error;
    type Variant = Strict<A::Variant>;

    fn variant_seed<S: DeserializeSeed<'de>>(
        self,
        seed: S,
    ) -> Result<(S::Value, Self::Variant), A::Error> {
        let (value, variant) = self.0.variant_seed(Strict(seed))?;
        Ok((value, Strict(variant)))
    }
}

impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for Strict<A> {
    type Error = A::Error;

    fn unit_variant(self) -> Result<(), A::Error> {
        self.0.unit_variant()
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, A::Error> {
        self.0.newtype_variant_seed(Strict(seed))
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, A::Error> {
        self.0.tuple_variant(len, open(visitor))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        self.0.struct_variant(fields, closed(visitor))
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;
    use std::collections::BTreeMap;

    use serde::Deserialize;
    use serde_json::json;
    use serde_json::value::RawValue;

    use super::*;

    #[derive(Debug, PartialEq, Deserialize)]
    struct Inner {
        a: u64,
    }

    #[derive(Debug, Deserialize)]
    struct Outer<'a> {
        #[serde(borrow)]
        text: Cow<'a, str>,
        #[serde(borrow)]
        raw: &'a RawValue,
        one: Inner,
        #[serde(default)]
        maybe: Option<Inner>,
        #[serde(default)]
        list: Vec<Inner>,
        #[serde(default)]
        map: BTreeMap<String, Inner>,
        #[serde(default)]
        any: Value,
        #[serde(default)]
        plain: Option<Plain>,
        #[serde(default)]
        pair: (u8, u8),
    }

    #[derive(Debug, Deserialize)]
    enum Plain {
        Unit,
        Fields { a: u64 },
        One(Inner),
    }

    #[derive(Debug, Deserialize)]
    #[serde(tag = "type")]
    enum Tagged {
        One { a: u64 },
    }

    const GOOD: &str = r#"{"text":"x","raw":[1,2],"one":{"a":1},"maybe":{"a":2},
        "list":[{"a":3}],"map":{"k":{"a":4}},"any":[1,[2]],"plain":{"Fields":{"a":5}},
        "pair":[6,7]}"#;

    #[test]
    fn what_is_right_is_read_as_before() {
        let read: Outer<'_> = from_str(GOOD).expect("it");
        assert!(matches!(read.text, Cow::Borrowed("x")), "it is borrowed");
        assert_eq!(read.raw.get(), "[1,2]");
        assert_eq!(
            (read.one, read.maybe),
            (Inner { a: 1 }, Some(Inner { a: 2 }))
        );
        assert_eq!((read.list.len(), read.map.len()), (1, 1));
        assert_eq!((read.any, read.pair), (json!([1, [2]]), (6, 7)));
        assert!(matches!(read.plain, Some(Plain::Fields { a: 5 })));
        assert!(matches!(from_str("\"Unit\""), Ok(Plain::Unit)));
        assert!(matches!(
            from_str(r#"{"One":{"a":1}}"#),
            Ok(Plain::One(Inner { a: 1 }))
        ));
        assert!(matches!(
            from_slice(br#"{"type":"One","a":1}"#),
            Ok(Tagged::One { a: 1 })
        ));
        assert!(matches!(from_value(json!({"a": 1})), Ok(Inner { a: 1 })));
        assert!(
            from_str::<Inner>(r#"{"a":1} x"#).is_err(),
            "nothing comes behind it"
        );
    }

    #[test]
    fn a_struct_is_never_read_from_a_list() {
        assert!(
            serde_json::from_str::<Inner>("[1]").is_ok(),
            "as it would be"
        );
        assert!(serde_json::from_str::<Tagged>(r#"["One",1]"#).is_ok());
        assert!(from_str::<Inner>("[1]").is_err());
        assert!(from_slice::<Inner>(b"[1]").is_err());
        assert!(from_value::<Inner>(json!([1])).is_err());
        assert!(from_str::<Tagged>(r#"["One",1]"#).is_err());
        assert!(from_str::<Plain>(r#"{"Fields":[1]}"#).is_err());
        assert!(from_str::<Plain>(r#"{"One":[1]}"#).is_err());
        let whole: Value = from_str(GOOD).expect("JSON");
        for (pointer, list) in [
            ("/one", json!([1])),
            ("/maybe", json!([1])),
            ("/list/0", json!([1])),
            ("/map/k", json!([1])),
            ("/plain/Fields", json!([1])),
        ] {
            let mut bad = whole.clone();
            *bad.pointer_mut(pointer).expect("a place") = list;
            let text = bad.to_string();
            let error = from_str::<Outer<'_>>(&text).expect_err(pointer);
            assert!(
                error.to_string().contains("invalid type: sequence"),
                "{error}"
            );
            assert!(error.column() > 0, "it says where: {error}");
        }
    }
}
