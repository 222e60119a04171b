// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/backend/host/rendezvous/call_descriptor.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <set>
#include <string>

#include "belay/comm/fingerprint.hpp"
#include "belay/core/dtype.hpp"

using namespace belay;
using namespace belay::host;

namespace {

// Every kind of element that a flag line can hold: each dtype, and each size of what is none.
template <class Visit>
void for_each_type(Visit visit) {
  for (std::size_t i = 0; i < dtype_count; ++i) {
    const auto kind = static_cast<std::uint8_t>(i);
    visit(element_code{kind, static_cast<std::uint32_t>(size_bytes(static_cast<dtype>(kind)))});
  }
  for (std::uint32_t bytes = 1; bytes <= flag_payload_bytes; ++bytes) visit(element_code{element_code::opaque, bytes});
}

}  // namespace

TEST_CASE("the last codes are the last: what is behind them has no name") {
  for (int i = 0; i <= static_cast<int>(last_operation); ++i) {
    CHECK(std::string(name(static_cast<operation>(i))) != "unknown");
  }
  CHECK(std::string(name(static_cast<operation>(static_cast<int>(last_operation) + 1))) == "unknown");
  for (int i = 0; i <= static_cast<int>(last_reduction); ++i) {
    CHECK(std::string(name(static_cast<reduction>(i))) != "unknown");
  }
  CHECK(std::string(name(static_cast<reduction>(static_cast<int>(last_reduction) + 1))) == "unknown");
  CHECK(size_bytes(static_cast<dtype>(dtype_count - 1)) > 0);
  CHECK(size_bytes(static_cast<dtype>(dtype_count)) == 0);
}

TEST_CASE(
    "every operation, reduction, type, count and root comes back from the word of a flag line, each from its own") {
  std::set<std::uint32_t> words;
  std::size_t calls = 0, wrong = 0;
  for (int what = 0; what <= static_cast<int>(last_operation); ++what) {
    for (int how = 0; how <= static_cast<int>(last_reduction); ++how) {
      for_each_type([&](element_code type) {
        for (std::uint64_t count = 0; count * type.bytes <= flag_payload_bytes; ++count) {
          for (const std::int32_t root : {-1, 0, 1, 509}) {
            const fingerprint call{static_cast<operation>(what), static_cast<reduction>(how), type, root, count, 0};
            const std::uint32_t word = inline_fingerprint(call);
            words.insert(word);
            ++calls;
            wrong += fingerprint_of_word(word) != call || operation_of_word(word) != call.what ||
                     bytes_of_word(word) != call.bytes() || word == descriptor_follows;
          }
        }
      });
    }
  }
  CHECK(wrong == 0);
  CHECK(words.size() == calls);
}

TEST_CASE("every root that a group with flag lines can have comes back") {
  constexpr int most = 510;  // see choose_small
  CHECK(choose_small(algorithm::automatic, 8, 4, most, eager_traffic::all) == algorithm::flag_line);
  CHECK(choose_small(algorithm::automatic, 8, 4, most + 1, eager_traffic::all) != algorithm::flag_line);
  for (std::int32_t root = -1; root < most; ++root) {
    const fingerprint call{operation::broadcast, reduction::none, element_code_of<float>(), root, 2, 0};
    REQUIRE(fingerprint_of_word(inline_fingerprint(call)) == call);
  }
}

TEST_CASE("a descriptor gives back the call, and compares the call alone") {
  std::size_t wrong = 0;
  for (int what = 0; what <= static_cast<int>(last_operation); ++what) {
    for_each_type([&](element_code type) {
      const fingerprint call{static_cast<operation>(what), last_reduction, type, 300, std::uint64_t{1} << 40, 7};
      call_descriptor one = call_descriptor::of(call), other = one;
      wrong += one.print() != call;
      other.head |= call_descriptor::not_compared;
      wrong += !one.is_same_call(other) || other.print() != call;
      other.root = 301;
      wrong += one.is_same_call(other);
    });
  }
  CHECK(wrong == 0);
}
