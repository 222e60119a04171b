// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/backend/mpi/progress/control_message.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

using belay::mpi::control_message;
using belay::mpi::control_message_kind;

namespace {
control_message header() {
  control_message out;
  out.kind = control_message_kind::collective_header;
  out.number = 7;
  out.send_counts = {1, SIZE_MAX, 3};
  out.receive_counts = {4};
  out.text = "train.cpp:88";
  return out;
}
// Where the header of a packed message holds the numbers of counts, and of characters.
constexpr std::size_t send_counts_at = 68, receive_counts_at = 72, text_length_at = 76;
}  // namespace

TEST_CASE("a message is unpacked as it was packed") {
  const control_message in = header(), out = control_message::unpacked(in.packed());
  CHECK(out.kind == in.kind);
  CHECK(out.number == in.number);
  CHECK(out.send_counts == in.send_counts);
  CHECK(out.receive_counts == in.receive_counts);
  CHECK(out.text == in.text);
}

TEST_CASE("bytes whose lengths are not theirs are no message, and nothing is read beyond them") {
  const std::vector<std::byte> whole = header().packed();
  for (std::size_t length = 0; length < whole.size(); ++length) {
    const std::vector<std::byte> cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(length));
    CHECK(control_message::unpacked(cut).kind == control_message_kind::exit);
  }
  for (const std::size_t field : {send_counts_at, receive_counts_at, text_length_at}) {
    for (const std::uint32_t claimed : {0xffffffffU, 0x80000000U, 0x20000000U, 5U}) {
      std::vector<std::byte> bytes = whole;
      std::memcpy(bytes.data() + field, &claimed, sizeof claimed);
      CHECK(control_message::unpacked(bytes).kind == control_message_kind::exit);
    }
  }
}
