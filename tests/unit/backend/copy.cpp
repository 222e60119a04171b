// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/core/copy.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <string>
#include <vector>

using belay::copy_bytes;
using belay::memory_access;

namespace {

constexpr std::byte untouched{0xee};

std::vector<std::byte> pattern(std::size_t bytes) {
  std::vector<std::byte> out(bytes);
  for (std::size_t i = 0; i < bytes; ++i) out[i] = static_cast<std::byte>((i * 131 + i / 251) & 0x7f);
  return out;
}

// Every byte of [to_shift, to_shift + bytes) is the source's, and none beside it was touched.
bool copies_exactly(memory_access how, std::size_t bytes, std::size_t from_shift, std::size_t to_shift) {
  const std::vector<std::byte> source = pattern(bytes + from_shift);
  std::vector<std::byte> target(bytes + to_shift + 256, untouched);
  copy_bytes(target.data() + to_shift, source.data() + from_shift, bytes, how);
  for (std::size_t i = 0; i < target.size(); ++i) {
    const bool inside = i >= to_shift && i < to_shift + bytes;
    if (target[i] != (inside ? source[i - to_shift + from_shift] : untouched)) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("every kind of copy moves all bytes and no others, whatever the size and the alignment") {
  for (const memory_access how : belay::copy_accesses) {
    CAPTURE(std::string(name(how)));
    for (std::size_t bytes = 0; bytes <= 1100; ++bytes) {
      CAPTURE(bytes);
      REQUIRE(copies_exactly(how, bytes, bytes % 7, bytes % 61));
    }
    for (std::size_t shift = 0; shift < 130; ++shift) {
      CAPTURE(shift);
      REQUIRE(copies_exactly(how, 5000, 0, shift));
      REQUIRE(copies_exactly(how, 5000, shift, 3));
    }
    CHECK(copies_exactly(how, (std::size_t{3} << 20) + 17, 1, 2));
  }
}

TEST_CASE("a copy onto itself and a copy of nothing are allowed") {
  for (const memory_access how : belay::copy_accesses) {
    std::vector<std::byte> bytes = pattern(4096);
    copy_bytes(bytes.data(), bytes.data(), bytes.size(), how);
    copy_bytes(nullptr, nullptr, 0, how);
    CHECK(bytes == pattern(4096));
  }
}

TEST_CASE("kinds have names") { CHECK(std::string(name(memory_access::rep_movsb)) == "rep_movsb"); }
