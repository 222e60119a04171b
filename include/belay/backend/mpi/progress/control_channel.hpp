// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The letters of one lane. They are sent without waiting and sorted on arrival by group, kind and sender, so a rank
// may be ahead in one group and behind in another. Letters between two ranks keep their order: who has left has
// posted everything else before.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "belay/backend/mpi/failure/peer_history.hpp"
#include "belay/backend/mpi/progress/control_message.hpp"
#include "belay/backend/mpi/progress/mpi_runtime.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {
namespace mpi {

/// Messages that were sent and may still be read by the library: they stay here until they have gone.
class outbox {
 public:
  outbox() = default;
  outbox(const outbox&) = delete;
  outbox& operator=(const outbox&) = delete;
  // What has not gone when a world ends badly stays where the library may look for it.
  ~outbox() {
    for (sent& one : sent_) static_cast<void>(one.bytes.release());
  }

  void send(MPI_Comm over, int to, int tag, std::vector<std::byte> bytes) {
    sent_.push_back({MPI_REQUEST_NULL, std::make_unique<std::vector<std::byte>>(std::move(bytes))});
    sent& last = sent_.back();
    const int code =
        MPI_Isend(last.bytes->data(), static_cast<int>(last.bytes->size()), MPI_BYTE, to, tag, over, &last.request);
    if (code == MPI_SUCCESS) return;
    sent_.pop_back();
    throw mpi_error("MPI_Isend", code, to);
  }
  void reap() {
    for (std::size_t i = 0; i < sent_.size();) {
      int gone = 0;
      expect(MPI_Test(&sent_[i].request, &gone, MPI_STATUS_IGNORE), "MPI_Test");
      if (gone == 0) {
        ++i;
        continue;
      }
      std::swap(sent_[i], sent_.back());
      sent_.pop_back();
    }
  }
  [[nodiscard]] bool empty() const noexcept { return sent_.empty(); }

 private:
  struct sent {
    MPI_Request request;
    std::unique_ptr<std::vector<std::byte>> bytes;
  };
  std::vector<sent> sent_;
};

/// Belongs to the thread of its lane.
class control_channel {
 public:
  /// Tells `heard` what peers have entered.
  control_channel(MPI_Comm comm, int ranks, peer_history& history)
      : comm_(comm), world_(group_key::of_world(ranks)), history_(&history), peers_(static_cast<std::size_t>(ranks)) {}
  control_channel(const control_channel&) = delete;
  control_channel& operator=(const control_channel&) = delete;

  [[nodiscard]] MPI_Comm comm() const noexcept { return comm_; }

  void post(int to, const control_message& what) { out_.send(comm_, to, letter_tag, what.packed()); }

  /// Takes what has arrived.
  void poll() {
    if (!out_.empty()) out_.reap();
    while (true) {
      int there = 0;
      MPI_Message message;
      MPI_Status status;
      expect(MPI_Improbe(MPI_ANY_SOURCE, letter_tag, comm_, &there, &message, &status), "MPI_Improbe");
      if (there == 0) return;
      int size = 0;
      MPI_Get_count(&status, MPI_BYTE, &size);
      buffer_.resize(static_cast<std::size_t>(size));
      expect(MPI_Mrecv(buffer_.data(), size, MPI_BYTE, &message, &status), "MPI_Mrecv", status.MPI_SOURCE);
      deliver(status.MPI_SOURCE, control_message::unpacked(buffer_));
    }
  }

  /// The oldest letter of this kind, of this group, from this rank of the world; null where none has arrived.
  [[nodiscard]] const control_message* first(const group_key& group, control_message_kind kind, int from) const {
    const auto found = queues_.find({group, kind, from});
    return found == queues_.end() ? nullptr : &found->second.front();
  }
  /// Takes that letter out. Only where there is one.
  [[nodiscard]] control_message take(const group_key& group, control_message_kind kind, int from) {
    const auto found = queues_.find({group, kind, from});
    control_message out = std::move(found->second.front());
    found->second.pop_front();
    if (found->second.empty()) queues_.erase(found);
    return out;
  }

  /// Whether that rank has said that it posts no more.
  [[nodiscard]] bool left(int rank) const noexcept { return peers_[static_cast<std::size_t>(rank)].left; }
  /// Whether it has done so without knowing of a stop: then it has returned from its body or thrown.
  [[nodiscard]] bool returned(int rank) const noexcept {
    return left(rank) && !peers_[static_cast<std::size_t>(rank)].told_to_stop;
  }
  /// What is known of a rank from its last letter: "in all_reduce #3 at train.cpp:88".
  [[nodiscard]] const std::string& last_seen(int rank) const noexcept {
    return peers_[static_cast<std::size_t>(rank)].seen;
  }
  [[nodiscard]] const std::string& last_site(int rank) const noexcept {
    return peers_[static_cast<std::size_t>(rank)].site;
  }

  /// Whether everything posted has gone.
  [[nodiscard]] bool drained() const noexcept { return out_.empty(); }

 private:
  static constexpr int letter_tag = 1;

  struct peer {
    bool left = false;
    bool told_to_stop = false;
    std::string seen = "before its first operation with this rank";
    std::string site;
  };

  void deliver(int from, control_message what) {
    peer& sender = peers_[static_cast<std::size_t>(from)];
    if (what.kind == control_message_kind::left) {
      sender.left = true;
      sender.told_to_stop = what.of_stopped();
      flight_record last = what.last_done();
      sender.seen = last.text();
      history_->told(from, std::move(last), peer_history::telling::leaves);
      return;
    }
    if (what.kind == control_message_kind::envelope || what.kind == control_message_kind::offer) {
      sender.seen = std::string("last seen in ") + name(what.print.what) + " #" + std::to_string(what.number) + " at " +
                    what.text;
      sender.site = what.text;
      history_->entered(from, what.entered(world_));
    }
    queues_[{what.group, what.kind, from}].push_back(std::move(what));
  }

  MPI_Comm comm_;
  group_key world_;
  peer_history* history_;
  outbox out_;
  std::vector<std::byte> buffer_;
  std::vector<peer> peers_;
  std::map<std::tuple<group_key, control_message_kind, int>, std::deque<control_message>> queues_;
};

}  // namespace mpi
}  // namespace belay::inline BELAY_ABI
