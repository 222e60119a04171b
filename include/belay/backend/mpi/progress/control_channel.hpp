// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The control messages of one lane. They are sent without waiting and sorted on arrival by group, kind and sender, so a
// rank may be ahead in one group and behind in another. Messages between two ranks keep their order: an exit message
// is behind all others of its sender.
// IWYU pragma: private, include "belay/backend/mpi.hpp"
#pragma once

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "belay/backend/mpi/failure/world_status.hpp"
#include "belay/backend/mpi/progress/control_message.hpp"
#include "belay/backend/mpi/progress/mpi_runtime.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {
namespace mpi {

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
