// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What every rank runs: its buffers, the contenders of each cell, the samples, the checks; rank 0 reports.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "collectives/algorithm.hpp"
#include "collectives/buffers.hpp"
#include "collectives/handwritten_baseline.hpp"
#include "collectives/library_calls.hpp"
#include "collectives/machine.hpp"
#include "collectives/mpi_peer.hpp"
#include "collectives/options.hpp"
#include "collectives/probe.hpp"
#include "collectives/result.hpp"
#include "collectives/sampler.hpp"
#include "collectives/scoreboard.hpp"
#include "collectives/unchecked_baseline.hpp"

namespace bench {

template <class Group>
class measurement {
 public:
  measurement(const Group& group, const options& what)
      : group_(group),
        what_(what),
        stage_(group, largest(what)),
        board_(stage_.board_lines(), group.rank(), group.size(),
               what.oversubscribed() ? variants::give_core_away : variants::keep_core),
        probe_(board_, std::getenv("BELAY_BENCH_SMOKE") != nullptr ? 0 : std::size_t{2} << 20) {
    if (what.buffers == "ordinary") {
      ordinary_.emplace(largest(what));
      ordinary_out_.emplace(largest(what));
    }
    in_ = ordinary_ ? ordinary_->data() : stage_.in(group.rank());
    out_ = ordinary_ ? ordinary_out_->data() : stage_.out(group.rank());
    if (what.has_peer("mpi")) mpi_ = make_mpi_peer(what, largest(what), group.rank());
    const bool fits_twin = group.size() == 2 && what.type == "float" && what.redop == "sum" && !ordinary_;
    if (what.has_peer("twin") && fits_twin) {
      const auto floats = [](std::byte* p) { return reinterpret_cast<float*>(p); };
      float* const ins[2] = {floats(stage_.in(0)), floats(stage_.in(1))};
      float* const outs[2] = {floats(stage_.out(0)), floats(stage_.out(1))};
      twin_.emplace(stage_.twin_lines(), group.rank(), ins, outs);
    }
    if constexpr (requires { stage_.bare_memory(); }) {
      if (what.has_peer("bare") && what.type == "float" && what.redop == "sum") {
        bare_.emplace(stage_.bare_memory(), group.rank(), group.size());
      }
    }
  }

  /// All cells of one operation, appended; `turn` is what a terminal is told beside its name. Collective.
  void measure(op which, const std::string& turn, std::vector<cell>& into) {
    subject_ = make_subject(group_, which, what_, in_, out_);
    if (!subject_) {
      if (group_.rank() == 0)
        std::printf("# %s: %s is moved, never reduced; left out\n", name(which), what_.type.c_str());
      return;
    }
    std::vector<std::size_t> sizes =
        which == op::barrier ? std::vector<std::size_t>{0} : sweep(what_.min, what_.max, what_.factor);
    for (const std::size_t bytes : sizes) {
      const extent size = extent_of(which, bytes, element_bytes(what_.type), group_.size());
      if (which != op::barrier && size.count == 0) continue;
      if (group_.rank() == 0 && ::isatty(STDERR_FILENO) != 0) {
        std::fprintf(stderr, "\r%s %-20s %10s ", turn.c_str(), name(which), size_text(size.bytes).c_str());
      }
      into.push_back(measure_one(which, size));
    }
    if (group_.rank() == 0 && ::isatty(STDERR_FILENO) != 0) std::fprintf(stderr, "\r%40s\r", "");
  }

 private:
  // A buffer of the largest call holds whole parts.
  [[nodiscard]] static std::size_t largest(const options& what) { return (what.max + 4095) / 4096 * 4096; }

  [[nodiscard]] cell measure_one(op which, extent size) {
    cell out;
    out.what = which;
    out.size = size;
    subject_->prepare(size);
    for (const bool in_place : {false, true}) out.algorithm[in_place ? 1 : 0] = settle(which, size, in_place);
    if (mpi_) mpi_->prepare(which, size);
    const std::unique_ptr<library_call> bare_subject =
        bare_ && unchecked_baseline::can(which, size.bytes) ? make_bare_subject(which) : nullptr;
    if (bare_subject) bare_subject->prepare(size);
    std::vector<contender> all;
    const auto add = [&](part who, std::string name, bool in_place, std::function<void()> freshen,
                         std::function<void(int)> run) {
      all.push_back({who, std::move(name), in_place, std::move(freshen), std::move(run)});
    };
    for (const bool in_place : {false, true}) {
      if (!subject_->offers(in_place)) continue;
      const auto fresh = [this, in_place] { subject_->freshen(in_place); };
      add(part::library_call, "belay", in_place, fresh,
          [this, in_place](int calls) { subject_->run(in_place, calls); });
      if (twin_) {
        for (const twin::setting& how : twin::settings(which, size.bytes, in_place)) {
          add(part::twin, how.name, in_place, fresh, [this, which, size, in_place, how](int calls) {
            for (int i = 0; i < calls; ++i) twin_->call(which, size.count, in_place, how);
          });
        }
      }
      if (bare_subject) {
        add(part::unchecked_baseline, "bare", in_place, fresh,
            [&, in_place](int calls) { bare_subject->run(in_place, calls); });
      }
      if (mpi_ && mpi_->can(which)) {
        add(
            part::mpi, "mpi", in_place, [this, in_place] { mpi_->freshen(in_place); },
            [this, in_place](int calls) {
              for (int i = 0; i < calls; ++i) mpi_->call(in_place);
            });
      }
    }
    if (what_.limits && size.bytes > 0) {
      std::byte* const to = out_;
      std::byte* const from = in_;
      for (const belay::host::copy_kind how : belay::host::copy_kinds) {
        const auto fresh = [this, from, size] {
          pattern_.write(reinterpret_cast<std::int32_t*>(from), size.bytes / 4, group_.rank(), ++round_);
        };
        add(part::copy, belay::host::name(how), false, fresh, [to, from, size, how](int calls) {
          for (int i = 0; i < calls; ++i) belay::host::copy_bytes(to, from, size.bytes, how);
        });
      }
    }
    take_samples(board_, probe_, all, what_.warmup, what_.samples(size.bytes), out);
    if (what_.check) check(which, size, out);
    return out;
  }

  // The library tries manners of an operation in its first calls; what is timed comes after them. Returns how it goes
  // then.
  [[nodiscard]] std::string settle(op which, extent size, bool in_place) {
    std::string usual = algorithm_of(what_, which, size, in_place);
    if (which == op::barrier || !subject_->offers(in_place)) return usual;
    const bool tried = size.bytes >= (ordinary_ ? belay::host::least_tried_unmapped : belay::host::least_tried_mapped);
    for (int i = 0; tried && i < belay::host::online_tuner::most_calls; ++i) {
      subject_->freshen(in_place);
      board_.align();
      subject_->run(in_place, 1);
    }
    if constexpr (requires { group_.last_variant(); }) {
      const bool told = tried && which != op::send_recv;  // by a meeting
      const bool free = forced_algorithm(what_) == belay::host::algorithm::automatic;
      if (told && free) return text_of(group_.last_variant(), usual);
    }
    return usual;
  }

  [[nodiscard]] std::unique_ptr<library_call> make_bare_subject(op which) const {
    float* const in = reinterpret_cast<float*>(in_);
    float* const out = reinterpret_cast<float*>(out_);
    if (which == op::barrier)
      return std::make_unique<meeter<unchecked_baseline, float>>(*bare_, which, in, out, what_.root);
    return std::make_unique<all_reducer<unchecked_baseline, float, belay::sum_t>>(*bare_, which, in, out, what_.root);
  }

  void check(op which, extent size, cell& into) {
    for (const bool in_place : {false, true}) {
      if (!subject_->offers(in_place)) continue;
      const auto wrong_after = [&](auto call) {
        subject_->spoil();
        subject_->freshen(in_place);
        board_.align();
        call();
        board_.align();
        const double wrong = board_.sum_of(static_cast<double>(subject_->wrong(in_place)));
        board_.align();  // nobody writes anew what another one still compares
        return static_cast<std::size_t>(wrong);
      };
      into.wrong[in_place ? 1 : 0] = wrong_after([&] { subject_->run(in_place, 1); });
      if (!twin_) continue;
      for (const twin::setting& how : twin::settings(which, size.bytes, in_place)) {
        // A faster wrong twin would be no twin.
        if (wrong_after([&] { twin_->call(which, size.count, in_place, how); }) > 0) {
          throw std::runtime_error("the twin's " + std::string(name(which)) + " (" + how.name + ") of " +
                                   std::to_string(size.bytes) + " bytes is wrong");
        }
      }
    }
  }

  Group group_;
  const options& what_;
  buffers<Group> stage_;
  scoreboard board_;
  state_probe probe_;
  std::optional<private_pages> ordinary_, ordinary_out_;
  std::byte* in_ = nullptr;
  std::byte* out_ = nullptr;
  std::unique_ptr<library_call> subject_;
  std::optional<twin> twin_;
  std::optional<unchecked_baseline> bare_;
  std::unique_ptr<mpi_peer> mpi_;
  pattern<std::int32_t> pattern_;
  unsigned round_ = 0;
};

/// Rank 0: the table, and the JSON file where one is wanted.
inline void report(const std::vector<cell>& cells, const options& what) {
  const std::vector<row> rows = rows_of(cells);
  const run_words words{what.type, what.redop, what.as, what.buffers, what.ranks, what.root};
  print_table(rows, words, stdout);
  for (const std::string& lost : without_row(cells, rows)) {
    std::fprintf(stderr, "# %s: no row, something else had a rank's core in every sample\n", lost.c_str());
  }
  const bool mpi = what.has_peer("mpi") && mpi_available;
  const nlohmann::ordered_json machine = machine_json(rows, mpi ? mpi_version() : std::string());
  for (const auto& [state, of] : machine["states"].items()) {
    if (of["rtt_us"].is_null()) continue;  // measured between two ranks with a core each
    std::printf("# state %s: round trip %.0f ns", state.c_str(), 1e3 * of["rtt_us"].get<double>());
    if (of["copy_scaling"].is_null())
      std::printf("\n");
    else
      std::printf(", two cores copy %.2f times what one does\n", of["copy_scaling"].get<double>());
  }
  if (!what.json.empty()) {
    nlohmann::ordered_json out{{"machine", machine}, {"results", nlohmann::ordered_json::array()}};
    for (const row& one : rows) out["results"].push_back(json_of(one, words));
    std::ofstream file(what.json);
    file << out.dump(1) << '\n';
    if (!file.flush()) throw std::runtime_error("--json " + what.json + ": cannot be written");
  }
  std::fflush(stdout);
}

/// Returns the number of wrong elements of all cells and ranks. Collective.
template <class Group>
std::size_t measure_all(const Group& group, const options& what) {
  std::vector<cell> cells;
  measurement<Group> all(group, what);
  for (std::size_t i = 0; i < what.ops.size(); ++i) {
    all.measure(what.ops[i], std::to_string(i + 1) + "/" + std::to_string(what.ops.size()), cells);
  }
  if (group.rank() == 0) report(cells, what);
  std::size_t wrong = 0;
  for (const cell& each : cells) wrong += each.wrong[0].value_or(0) + each.wrong[1].value_or(0);
  return wrong;
}

}  // namespace bench
