// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A rank in one operation of a group: it exchanges headers with the others, compares all of them, and then moves bytes.
// Every rank gets every other's header, so all come to the same result before anything is written.
// IWYU pragma: private, include "belay/backend/mpi.hpp"
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "belay/backend/mpi/progress/chunked_transfer.hpp"
#include "belay/backend/mpi/progress/control_message.hpp"
#include "belay/backend/mpi/rendezvous/group_state.hpp"
#include "belay/comm/abort_cause.hpp"
#include "belay/comm/call_mismatch.hpp"
#include "belay/comm/fingerprint.hpp"
#include "belay/comm/lane.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace mpi {

/// Lives for one operation. Ranks are those of the group unless said otherwise.
class collective_context {
 public:
  collective_context(group_state& group, lane which, clock::duration limit)
      : group_(&group), lane_(which), limit_(limit) {}

  [[nodiscard]] int rank() const noexcept { return group_->rank; }
  [[nodiscard]] int size() const noexcept { return group_->size(); }
  [[nodiscard]] int world_rank(int q) const noexcept { return group_->world_rank(q); }

  /// Returns when all ranks have entered the same operation; otherwise throws `comm_error` before any of them has gone
  /// on.
  void enter(const fingerprint& print, std::span<const std::size_t> send_counts,
             std::span<const std::size_t> receive_counts, where at) {
    mpi_progress& progress = *group_->progress;
    call_ = {print.what, group_->id, group_->operations[index(lane_)]++, print.bytes(), at};
    if (progress.aborted()) progress.raise(call_);
    progress.enter(lane_, call_);
    headers_.resize(static_cast<std::size_t>(size()));
    control_message& mine = headers_[static_cast<std::size_t>(rank())];
    mine.kind = control_message_kind::collective_header;
    mine.group = group_->key;
    mine.order = group_->order;
    mine.number = call_.number;
    mine.print = print;
    mine.send_counts.assign(send_counts.begin(), send_counts.end());
    mine.receive_counts.assign(receive_counts.begin(), receive_counts.end());
    mine.text = at.text();
    if (size() > 1) exchange_headers(progress, mine);
    compare();
  }

  /// Posts the header of what was started, as the last one of this lane.
  void tell_first_start(operation what, where at) {
    mpi_progress& progress = *group_->progress;
    call_ = {what, group_->id, group_->operations[index(lane_)]++, 0, at};
    if (progress.aborted()) return;
    control_message mine;
    mine.kind = control_message_kind::collective_header;
    mine.group = group_->key;
    mine.order = group_->order;
    mine.number = call_.number;
    mine.print = fingerprint::first_start(what);
    mine.text = at.text();
    progress.guarded(call_, [&] {
      for (int k = 1; k < size(); ++k) progress.channel(lane_).post(world_rank((rank() + k) % size()), mine);
    });
  }

  /// Moves between this rank and others: `fill(q, transfer)` sets what goes to rank q and what comes from it.
  template <class Fill>
  void move(Fill fill) {
    if (size() == 1) return;
    mpi_progress& progress = *group_->progress;
    chunked_transfer bytes(progress.channel(lane_).comm());
    for (int k = 1; k < size(); ++k) {  // each rank begins with another peer
      const int q = (rank() + k) % size();
      transfer one;
      one.peer = world_rank(q);
      fill(q, one);
      bytes.add(one);
    }
    progress.guarded(call_, [&] { bytes.progress(); });
    progress.await(lane_, call_, limit_, [&] { return bytes.progress(); }, [&](auto tell) { bytes.remaining(tell); });
  }

  void finish() noexcept { group_->progress->finish(lane_); }

  // What comparisons of all ranks' calls ask for (see call_mismatch.hpp).

  [[nodiscard]] std::span<const std::size_t> send_counts_of(int q) const noexcept { return of(q).send_counts; }
  [[nodiscard]] std::span<const std::size_t> receive_counts_of(int q) const noexcept { return of(q).receive_counts; }
  [[nodiscard]] const std::string& site_of(int q) const noexcept { return of(q).text; }
  [[nodiscard]] std::string call_text(int q) const {
    const fingerprint& print = of(q).print;
    return print.shape == 0 ? print.text() : print.text_with(of(q).send_counts);
  }

  /// Stops the world because the calls do not match; every rank of the group sees that and does the same.
  [[noreturn]] void refuse(const mismatch_report& found) {
    group_->progress->abort({comm_fault::mismatch, found.culprits, found.message, found.there});
    group_->progress->raise(call_);
  }

 private:
  [[nodiscard]] const control_message& of(int q) const noexcept { return headers_[static_cast<std::size_t>(q)]; }

  void exchange_headers(mpi_progress& progress, const control_message& mine) {
    control_channel& channel = progress.channel(lane_);
    progress.guarded(call_, [&] {
      for (int k = 1; k < size(); ++k) channel.post(world_rank((rank() + k) % size()), mine);
    });
    const auto missing = [&](auto tell) {
      for (int member : group_->ranks) {
        if (member == progress.number()) continue;
        if (channel.first(group_->key, control_message_kind::collective_header, member) == nullptr) tell(member, true);
      }
    };
    const auto all_here = [&] {
      bool here = true;
      missing([&](int, bool) { here = false; });
      return here;
    };
    progress.await(lane_, call_, limit_, all_here, missing);
    for (int q = 0; q < size(); ++q) {
      if (q == rank()) continue;
      headers_[static_cast<std::size_t>(q)] =
          channel.take(group_->key, control_message_kind::collective_header, world_rank(q));
    }
  }

  void compare() {
    const auto alike = [&](int a, int b) { return of(a).print == of(b).print && of(a).order == of(b).order; };
    expect_alike(*this, alike, [&](int q) {
      return call_text(q) + (of(q).order == group_->order ? "" : " in a group of another order of ranks");
    });
  }

  group_state* group_;
  lane lane_;
  clock::duration limit_;
  call_site call_;
  std::vector<control_message> headers_;
};

}  // namespace mpi
}  // namespace belay::inline BELAY_ABI
