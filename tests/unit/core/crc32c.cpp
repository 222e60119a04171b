// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/core/crc32c.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

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
