// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The small messages that precede data: the header of a rank's call of a collective, request and clear to send of an
// exchange, and a rank's last message. All ranks run on machines of one byte order.
// IWYU pragma: private, include "belay/backend/mpi.hpp"
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "belay/comm/fingerprint.hpp"
#include "belay/comm/flight_recorder.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/checked_size.hpp"
#include "belay/core/config.hpp"
#include "belay/core/hash.hpp"

namespace belay::inline BELAY_ABI {
namespace mpi {

/// Identifies a group, the same on all its members without communication: two hashes of its sorted members and of how
/// many groups of the same members were made before.
struct group_key {
  std::uint64_t first = 0;
  std::uint64_t second = 0;

  [[nodiscard]] auto operator<=>(const group_key&) const = default;

  [[nodiscard]] static group_key of(std::span<const int> sorted_members, std::uint64_t made_before) noexcept {
    fnv1a first;
    std::uint64_t second = 0x9e3779b97f4a7c15ULL;
    const auto fold = [&](std::uint64_t word) {
      first.add(word);
      second = (second + word) * 0xbf58476d1ce4e5b9ULL;
      second ^= second >> 31;
    };
    for (int member : sorted_members) fold(static_cast<std::uint64_t>(member) + 1);
    fold(made_before);
    return {first.value(), second};
  }

  /// The first group of all ranks.
  [[nodiscard]] static group_key of_world(int ranks) {
    std::vector<int> all_ranks(static_cast<std::size_t>(ranks));
    std::iota(all_ranks.begin(), all_ranks.end(), 0);
    return of(all_ranks, 0);
  }
  /// For texts: the same on all members; 0 for the world.
  [[nodiscard]] std::uint32_t number(const group_key& world) const noexcept {
    return *this == world ? 0 : static_cast<std::uint32_t>(second % 999'999) + 1;
  }
};

enum class control_message_kind : std::uint8_t {
  collective_header,  // the sender has entered a collective
  rts,                // request to send, in an exchange
  cts,                // clear to send: the receiver of an rts expects the same
  exit,               // the sender's last message
};

/// One small message. What does not belong to its kind is empty.
struct control_message {
  control_message_kind kind = control_message_kind::exit;
  group_key group;
  std::uint64_t order = 0;   // hash of the group's members in their order
  std::uint64_t number = 0;  // of the operation in its group
  fingerprint print;
  std::uint64_t bytes = 0;  // of an rts
  std::int32_t tag = 0;     // of an rts
  std::vector<std::size_t> send_counts;
  std::vector<std::size_t> receive_counts;
  std::string text;  // where the call is

  enum class exit_status { returned, aborted };  // aborted: the sender knows that the world has stopped
  /// The exit message of a rank whose last operation is `last`.
  [[nodiscard]] static control_message exit_message(const flight_record& last, exit_status status) {
    control_message out;
    out.kind = control_message_kind::exit;
    out.number = status == exit_status::aborted ? 1 : 0;
    out.order = last.number;
    out.bytes = last.bytes;
    out.tag = static_cast<std::int32_t>(last.group);
    out.print.what = last.what;
    out.print.root = last.finished ? 1 : 0;
    out.text = last.site;
    return out;
  }
  [[nodiscard]] exit_status status() const noexcept {
    return number != 0 ? exit_status::aborted : exit_status::returned;
  }
  /// The last operation of the sender of an exit message.
  [[nodiscard]] flight_record last_operation() const {
    const auto size = static_cast<std::size_t>(bytes);
    return {print.what, print.root != 0, static_cast<std::uint32_t>(tag), order, size, 0, 0, text, false};
  }
  /// The operation that the sender of a collective header or an rts has entered.
  [[nodiscard]] flight_record entered(const group_key& world) const {
    const std::uint64_t size = kind == control_message_kind::rts ? bytes : print.bytes();
    return {print.what, false, group.number(world), number, static_cast<std::size_t>(size), 0, 0, text, false};
  }

  [[nodiscard]] std::vector<std::byte> packed() const {
    const header head{group.first,
                      group.second,
                      order,
                      number,
                      print.count,
                      print.shape,
                      bytes,
                      tag,
                      print.root,
                      print.type.bytes,
                      static_cast<std::uint32_t>(send_counts.size()),
                      static_cast<std::uint32_t>(receive_counts.size()),
                      static_cast<std::uint32_t>(lesser_of(text.size(), longest_text)),
                      {static_cast<std::uint8_t>(kind), static_cast<std::uint8_t>(print.what),
                       static_cast<std::uint8_t>(print.how), print.type.kind},
                      0};
    std::vector<std::byte> out;
    out.reserve(sizeof head + (send_counts.size() + receive_counts.size()) * sizeof(std::size_t) + head.text_length);
    const auto put = [&](const void* from, std::size_t size) {
      const auto* const first = static_cast<const std::byte*>(from);
      out.insert(out.end(), first, first + size);
    };
    put(&head, sizeof head);
    put(send_counts.data(), send_counts.size() * sizeof(std::size_t));
    put(receive_counts.data(), receive_counts.size() * sizeof(std::size_t));
    // Of a long path the end is kept.
    put(text.data() + (text.size() - head.text_length), head.text_length);
    return out;
  }

  /// An exit message where the bytes are no control message.
  [[nodiscard]] static control_message unpacked(std::span<const std::byte> bytes) {
    header head{};
    control_message out;
    if (bytes.size() < sizeof head) return out;
    std::memcpy(&head, bytes.data(), sizeof head);
    const checked_size rest =
        (checked_size(head.send_counts) + head.receive_counts) * sizeof(std::size_t) + head.text_length;
    if (rest.saturated() != bytes.size() - sizeof head) return out;
    out.kind = static_cast<control_message_kind>(head.codes[0]);
    out.group = {head.first, head.second};
    out.order = head.order;
    out.number = head.number;
    out.print = {static_cast<operation>(head.codes[1]),
                 static_cast<reduction>(head.codes[2]),
                 {head.codes[3], head.element_bytes},
                 head.root,
                 head.count,
                 head.shape};
    out.bytes = head.bytes;
    out.tag = head.tag;
    const std::byte* from = bytes.data() + sizeof head;
    const auto counts = [&](std::vector<std::size_t>& into, std::uint32_t length) {
      into.resize(length);
      if (length > 0) std::memcpy(into.data(), from, length * sizeof(std::size_t));
      from += length * sizeof(std::size_t);
    };
    counts(out.send_counts, head.send_counts);
    counts(out.receive_counts, head.receive_counts);
    out.text.assign(reinterpret_cast<const char*>(from), head.text_length);
    return out;
  }

 private:
  static constexpr std::size_t longest_text = 400;

  struct header {
    std::uint64_t first, second, order, number, count, shape, bytes;
    std::int32_t tag, root;
    std::uint32_t element_bytes, send_counts, receive_counts, text_length;
    std::array<std::uint8_t, 4> codes;
    std::uint32_t unused;
  };
  static_assert(sizeof(header) == 88);
};

}  // namespace mpi
}  // namespace belay::inline BELAY_ABI
