// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/core/hash.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "belay/core/printable.hpp"

using belay::content_hash;
using belay::fnv1a;

TEST_CASE("FNV-1a of text has the published values") {
  static_assert(fnv1a().value() == 0xcbf29ce484222325U);
  static_assert(fnv1a().add_text("a").value() == 0xaf63dc4c8601ec8cU);
  CHECK(fnv1a().add_text("foobar").value() == 0x85944171f73967e8U);
  CHECK(fnv1a().add_text("\xff").value() == 0xaf64724c8602eb6eU);  // a byte is not negative
}

TEST_CASE("FNV-1a goes on where another one ended, and takes a word as one unit") {
  const std::uint64_t begun = fnv1a().add_text("foo").value();
  CHECK(fnv1a(begun).add_text("bar").value() == fnv1a().add_text("foobar").value());
  CHECK(fnv1a().add('a').value() == fnv1a().add_text("a").value());
  CHECK(fnv1a().add(0x6261).value() != fnv1a().add_text("ab").value());
  CHECK(fnv1a(0).add(1).value() == fnv1a::prime);
}

TEST_CASE("a content hash sees every byte, their order and their number") {
  const auto of = [](const std::string& text) { return content_hash().add_text(text).value(); };
  const std::string text = "seventeen bytes!!";
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::string other = text;
    other[i] = static_cast<char>(other[i] ^ 1);
    CHECK(of(other) != of(text));
  }
  CHECK(of("") != of(std::string(1, '\0')));
  CHECK(content_hash().add(1).add(2).value() != content_hash().add(2).add(1).value());
}

TEST_CASE("hexadecimal has as many digits as were asked for, in lower case") {
  std::string out = "belay-";
  belay::append_hex(out, 0xc0ffee00c0ffeeU, 16);
  CHECK(out == "belay-00c0ffee00c0ffee");
  out.clear();
  belay::append_hex(out, 0xabcU, 2);
  CHECK(out == "bc");
  belay::append_hex(out, 0, 0);
  CHECK(out == "bc");
}

namespace {

std::uint32_t of(std::string_view text, belay::crc32c_method method) {
  return belay::crc32c(method).add(std::as_bytes(std::span<const char>(text))).value();
}

}  // namespace

TEST_CASE("the checksums that RFC 3720 gives") {
  for (const auto method : {belay::crc32c_method::best, belay::crc32c_method::tables}) {
    CHECK(of("", method) == 0);
    CHECK(of("123456789", method) == 0xe3069283U);
    CHECK(of(std::string_view("\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 32), method) ==
          0x8a9136aaU);
    CHECK(of("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"
             "\xff\xff\xff\xff\xff\xff",
             method) == 0x62a8ab43U);
  }
}

TEST_CASE("instruction and tables agree, in one part or in several, and see one bit") {
  std::vector<std::byte> data(1031);
  std::uint32_t state = 7;
  for (std::byte& each : data) each = static_cast<std::byte>((state = state * 1664525U + 1013904223U) >> 24U);
  for (std::size_t size = 0; size < 70; ++size) {
    const auto all = std::span<const std::byte>(data).subspan(size % 9, size);
    const std::uint32_t whole = belay::crc32c(belay::crc32c_method::instruction).add(all).value();
    CHECK(whole == belay::crc32c(belay::crc32c_method::tables).add(all).value());
    for (std::size_t cut = 0; cut <= size; cut += 3)
      CHECK(whole == belay::crc32c().add(all.first(cut)).add(all.subspan(cut)).value());
  }
  const std::uint32_t before = belay::crc32c_of(data);
  data[700] ^= std::byte{16};
  CHECK(belay::crc32c_of(data) != before);
}
