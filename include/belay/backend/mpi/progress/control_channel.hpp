// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The small messages that precede data, of one lane: the header of a rank's call of a collective, request and clear to
// send of an exchange, and a rank's last message. All ranks run on machines of one byte order. They are sent without
// waiting and sorted on arrival by group, kind and sender, so a rank may be ahead in one group and behind in another.
// Messages between two ranks keep their order: an exit message is behind all others of its sender.
// IWYU pragma: private, include "belay/backend/mpi.hpp"
#pragma once

#include <mpi.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "belay/backend/mpi/failure/world_status.hpp"
#include "belay/backend/mpi/progress/mpi_runtime.hpp"
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

/// Messages with one tag of one communicator.
/// Small messages that are sent without waiting and taken in the order of their arrival.
class message_queue {
 public:
  message_queue(MPI_Comm comm, int tag) noexcept : comm_(comm), tag_(tag) {}
  message_queue(const message_queue&) = delete;
  message_queue& operator=(const message_queue&) = delete;
  // After a failure the library may still read what is not complete: that memory is never freed.
  ~message_queue() {
    for (sent& one : sent_) static_cast<void>(one.bytes.release());
  }

  [[nodiscard]] MPI_Comm comm() const noexcept { return comm_; }

  /// Sends without waiting.
  void send(int to, std::vector<std::byte> bytes) {
    sent_.push_back({MPI_REQUEST_NULL, std::make_unique<std::vector<std::byte>>(std::move(bytes))});
    sent& last = sent_.back();
    const int size = static_cast<int>(last.bytes->size());
    const int code = MPI_Isend(last.bytes->data(), size, MPI_BYTE, to, tag_, comm_, &last.request);
    if (code == MPI_SUCCESS) return;
    sent_.pop_back();
    throw mpi_error("MPI_Isend", code, to);
  }

  /// Calls `deliver(from, bytes)` for each message that has arrived.
  template <class Deliver>
  void poll(Deliver deliver) {
    release_completed();
    while (true) {
      int there = 0;
      MPI_Message message;
      MPI_Status status;
      expect(MPI_Improbe(MPI_ANY_SOURCE, tag_, comm_, &there, &message, &status), "MPI_Improbe");
      if (there == 0) return;
      int size = 0;
      MPI_Get_count(&status, MPI_BYTE, &size);
      received_.resize(static_cast<std::size_t>(size));
      expect(MPI_Mrecv(received_.data(), size, MPI_BYTE, &message, &status), "MPI_Mrecv", status.MPI_SOURCE);
      deliver(status.MPI_SOURCE, std::span<const std::byte>(received_));
    }
  }

  /// Whether the library is done with everything sent.
  [[nodiscard]] bool drained() {
    release_completed();
    return sent_.empty();
  }

 private:
  struct sent {
    MPI_Request request;
    std::unique_ptr<std::vector<std::byte>> bytes;
  };

  void release_completed() {
    for (std::size_t i = 0; i < sent_.size();) {
      int complete = 0;
      expect(MPI_Test(&sent_[i].request, &complete, MPI_STATUS_IGNORE), "MPI_Test");
      if (complete == 0) {
        ++i;
        continue;
      }
      std::swap(sent_[i], sent_.back());
      sent_.pop_back();
    }
  }

  MPI_Comm comm_;
  int tag_;
  std::vector<sent> sent_;
  std::vector<std::byte> received_;
};

/// Belongs to the thread of its lane.
class control_channel {
 public:
  /// Adds what peers have entered to `history`.
  control_channel(MPI_Comm comm, int ranks, peer_history& history)
      : messages_(comm, control_tag),
        world_(group_key::of_world(ranks)),
        history_(&history),
        peers_(static_cast<std::size_t>(ranks)) {}
  control_channel(const control_channel&) = delete;
  control_channel& operator=(const control_channel&) = delete;

  [[nodiscard]] MPI_Comm comm() const noexcept { return messages_.comm(); }

  void post(int to, const control_message& what) { messages_.send(to, what.packed()); }

  /// Takes what has arrived.
  void poll() {
    messages_.poll(
        [this](int from, std::span<const std::byte> bytes) { deliver(from, control_message::unpacked(bytes)); });
  }

  /// The oldest message of this kind and group from this rank of the world; null where none has arrived.
  [[nodiscard]] const control_message* first(const group_key& group, control_message_kind kind, int from) const {
    const auto found = queues_.find({group, kind, from});
    return found == queues_.end() ? nullptr : &found->second.front();
  }
  /// Takes that message out. Only where there is one.
  [[nodiscard]] control_message take(const group_key& group, control_message_kind kind, int from) {
    const auto found = queues_.find({group, kind, from});
    control_message out = std::move(found->second.front());
    found->second.pop_front();
    if (found->second.empty()) queues_.erase(found);
    return out;
  }

  /// Whether that rank's exit message has come: it posts no more.
  [[nodiscard]] bool exited(int rank) const noexcept { return peers_[static_cast<std::size_t>(rank)].exit.has_value(); }
  /// Whether it has exited without knowing of an abort: its body has returned or thrown.
  [[nodiscard]] bool returned(int rank) const noexcept {
    return peers_[static_cast<std::size_t>(rank)].exit == control_message::exit_status::returned;
  }
  /// A rank's last operation as its last message tells it: "last seen in all_reduce #3 at train.cpp:88".
  [[nodiscard]] const std::string& last_seen(int rank) const noexcept {
    return peers_[static_cast<std::size_t>(rank)].seen;
  }
  [[nodiscard]] const std::string& last_site(int rank) const noexcept {
    return peers_[static_cast<std::size_t>(rank)].site;
  }

  /// Whether the library is done with everything posted.
  [[nodiscard]] bool drained() { return messages_.drained(); }

 private:
  static constexpr int control_tag = 1;

  struct peer {
    std::optional<control_message::exit_status> exit;
    std::string seen = "before its first operation with this rank";
    std::string site;
  };

  void deliver(int from, control_message what) {
    peer& sender = peers_[static_cast<std::size_t>(from)];
    if (what.kind == control_message_kind::exit) {
      sender.exit = what.status();
      flight_record last = what.last_operation();
      sender.seen = last.text();
      history_->add_report(from, std::move(last), peer_history::reporter::exited);
      return;
    }
    const bool entered = what.kind == control_message_kind::collective_header || what.kind == control_message_kind::rts;
    if (entered && !what.print.first_start()) {
      sender.seen = std::string("last seen in ") + name(what.print.what) + " #" + std::to_string(what.number) + " at " +
                    what.text;
      sender.site = what.text;
      history_->add_entry(from, what.entered(world_));
    }
    queues_[{what.group, what.kind, from}].push_back(std::move(what));
  }

  message_queue messages_;
  group_key world_;
  peer_history* history_;
  std::vector<peer> peers_;
  std::map<std::tuple<group_key, control_message_kind, int>, std::deque<control_message>> queues_;
};

}  // namespace mpi
}  // namespace belay::inline BELAY_ABI
