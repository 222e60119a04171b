// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Checkpoints of a run: stores, optimizers and the user's own state, written beside the training by every rank, and
// loaded on any mesh, ZeRO stage and type. A crash at any instant leaves the last committed one.
//
//   belay::checkpoints saved{run, mesh, {.folder = "runs/a", .every = 50, .keep = 3}};
//   saved.add(store, optimizer);
//   saved.add("data", cursor);                                       // has save() and load(text)
//   const auto from = saved.open(belay::resume_from::newest);
//   for (const std::size_t number : run.steps(total, from.step)) {
//     belay::step step{run.engine(), store, saved};                  // "mine is written" joins its vote
//     ...
//     if (saved.after(number)) break;                                // somebody asked to stop: see stop_request
//   }
//   saved.close();
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "belay/comm/communicator.hpp"
#include "belay/comm/mesh.hpp"
#include "belay/comm/reduction.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/hash.hpp"
#include "belay/core/policies.hpp"
#include "belay/core/where.hpp"
#include "belay/device/stored_bytes.hpp"
#include "belay/device/tier.hpp"
#include "belay/parallel/bucket/update_observer.hpp"
#include "belay/parallel/rank_comparison.hpp"
#include "belay/step/commit.hpp"
#include "belay/step/participant.hpp"
#include "belay/train/checkpoint/added_state.hpp"
#include "belay/train/checkpoint/checkpoint_folder.hpp"
#include "belay/train/checkpoint/checkpoint_layout.hpp"
#include "belay/train/checkpoint/checkpoint_reader.hpp"
#include "belay/train/checkpoint/checkpoint_writer.hpp"
#include "belay/train/checkpoint/manifest.hpp"
#include "belay/train/safetensors/file_agreement.hpp"
#include "belay/train/stop_request.hpp"

namespace belay::inline BELAY_ABI {

/// A store of parameters.
template <class Store>
concept saved_store = requires(Store& store, update_observer& observer) {
  typename Store::buckets_type;
  { store.observe(observer, observer_turn::reads_state) } -> std::same_as<update_observation>;
};

/// An optimizer of a store: `each_state(visit)` and `each_setting(visit)` as adamw has them.
template <class Optimizer>
concept saved_optimizer = requires(Optimizer& optimizer, std::uint64_t steps) {
  { optimizer.steps() } -> std::convertible_to<std::uint64_t>;
  optimizer.continue_after(steps);
};

/// State of one's own, equal on all ranks: as UTF-8 text, and back.
template <class State>
concept saved_state = requires(State& state, const State& same, std::string_view text) {
  { same.save() } -> std::convertible_to<std::string>;
  state.load(text);
};

/// Where checkpoints go, how often they are written, how many are kept, and who may ask for the last one.
struct checkpoint_options {
  std::string folder = {};                         // of all checkpoints of the run; empty: none are written
  std::uint64_t every = 0;                         // steps; 0: only when it is asked to stop
  std::size_t keep = 0;                            // so many of the newest; 0: all
  std::size_t ring_bytes = std::size_t{4} << 20U;  // what an update can copy instead of waiting for a write; tier host
  const stop_request* stop = nullptr;              // outlives the checkpoints
};

/// The state that a run begins with: none, for which the folder must have no checkpoint; or that of the newest
/// checkpoint that is there, or its weights alone, with a fresh optimizer.
enum class resume_from : std::uint8_t { nothing, newest, newest_weights };

/// The checkpoint that a run was resumed from. Step 0: there was none.
struct resumed_run {
  /// Steps that were done, and the folder they came from.
  std::uint64_t step = 0;
  std::string folder = {};
  std::uint64_t bytes_read = 0;           // by this rank
  std::vector<std::uint64_t> swept = {};  // on rank 0: steps whose checkpoint was never committed, and is removed
  std::vector<file_error> left = {};      // on rank 0: what is called like a checkpoint, and stays as it is, and why
};

/// All ranks of the mesh make one and call it alike. Run, mesh, stores, optimizers and states outlive it. It takes part
/// in steps. State that is saved changes by `optimizer.apply` alone while a step is trained; whoever changes it
/// otherwise calls `before_update` first.
template <class Run, folders_policy Files = posix_files>
class checkpoints final : public participant, public update_observer {
 public:
  /// Makes no folder yet. `run` and `mesh` outlive it.
  checkpoints(Run& run, const mesh& mesh, checkpoint_options options, where at = where::current());
  checkpoints(const checkpoints&) = delete;
  checkpoints& operator=(const checkpoints&) = delete;
  ~checkpoints();

  /// Whether there is a folder to write to; without one every call does nothing.
  [[nodiscard]] bool enabled() const noexcept { return !options_.folder.empty(); }
  [[nodiscard]] const checkpoint_options& options() const noexcept { return options_; }

  /// The values of a store's parameters, in whatever tier. What lies in tier file is read through memory of tier host,
  /// "checkpoint staging".
  template <saved_store Store>
  void add(Store& store, where at = where::current());
  /// The values of a store's parameters and the state of their optimizer, in whatever tiers. Bytes in tier file are
  /// read through memory of tier host, "checkpoint staging".
  template <saved_store Store, saved_optimizer Optimizer>
  void add(Store& store, Optimizer& optimizer, where at = where::current());
  /// State of one's own, under a name.
  template <saved_state State>
  void add(std::string name, State& state, where at = where::current());

  /// Makes the folder, removes what a run that died has left there, and fills everything that was added from the newest
  /// checkpoint; then removes older ones than are kept. What cannot be removed stays, and is in `left`; links are never
  /// followed to it. Collective over the mesh, before the first step. Throws on all ranks: input_error where there are
  /// checkpoints and `from` is `nothing`; usage_error where ranks have added other states or optimizers, or do not
  /// together write each element of a tensor once; file_error where another run writes there or the system cannot say
  /// what the newest is, and then nothing is removed; or, with file, byte and tensor, what is damaged, missing or does
  /// not fit: then state is filled in part.
  resumed_run open(resume_from from = resume_from::nothing, where at = where::current());

  /// Fills what was added from the checkpoint in `folder`, as "runs/a/step-00000050"; returns the bytes that this rank
  /// has read of its files, the manifest aside. Collective, between steps. Errors as of `open`.
  std::uint64_t load(const std::string& folder, state_kinds kinds, where at = where::current()) {
    return load_step(folder, kinds, {}, at);
  }

  /// After step `number` of the whole run was applied. Begins a checkpoint where the options want one, and commits the
  /// one that all ranks have written. True: a stop was asked for, this step's checkpoint is committed, and the loop is
  /// to end. A checkpoint that could not be written does not end the training; see `take_problem`. Collective. Throws
  /// file_error where that of a stop could not be written, usage_error before `open`.
  [[nodiscard]] bool after(std::uint64_t number, where at = where::current());

  /// Returns when what was begun is committed. Collective. Throws file_error on all ranks where it could not be; what
  /// was given up before is no error here.
  void close(where at = where::current());

  /// Why the last checkpoint that failed could not be written, and what could not be removed since `open`; each once,
  /// alike on all ranks but for a manifest and what is removed, which are rank 0's alone.
  [[nodiscard]] std::optional<file_error> take_problem();
  [[nodiscard]] checkpoint_costs costs() const { return writer_ ? writer_->costs() : checkpoint_costs{}; }

  /// The state is about to change: returns when no write reads it any more.
  void before_update(where = where::current()) override;

  // A step asks its participants for these.

  /// As a participant of each step: learns from the vote whether a checkpoint failed or a stop was asked for.
  void begin(const step_start&, where) noexcept override {}
  [[nodiscard]] ballot findings() override { return own_ballot(); }
  void learn(const ballot& all) noexcept override { heard_ = all; }
  [[nodiscard]] std::uint64_t fingerprint() const noexcept override {
    return fnv1a().add_text("checkpoints").add(options_.every).add(enabled() ? 1 : 0).value();
  }

 private:
  using control_type = group;
  static constexpr std::size_t copied_at_once = std::size_t{1} << 16U;  // bytes, of the ring, which nothing uses then

  [[nodiscard]] const control_type& control() const noexcept { return mesh_->control(); }
  [[nodiscard]] bool speaks() const { return control().rank() == 0; }

  void lease_staging(where at);
  void expect_not_open(where at) const {
    if (writer_) throw usage_error("what is saved is added before saved.open(...), which loads it", at);
  }
  // `step` is what the folder's name says, where that is to be what is in it.
  std::uint64_t load_step(const std::string& folder, state_kinds kinds, std::optional<std::uint64_t> step, where at);
  // Rank 0's states and optimizers are in the manifest, and every rank looks for its own there.
  void expect_same_manifests(where at) const;
  [[nodiscard]] declared_state declared();

  [[nodiscard]] ballot own_ballot() const;
  [[nodiscard]] ballot vote(where at) const;

  // Commits or gives up what all ranks have finished.
  void settle(const ballot& all, where at);
  // All ranks know why, and training goes on.
  void give_up(where at);
  void finish_writing(where at);

  // What a phase has moved away is there until it is written. False: of some rank it cannot be, as all know.
  [[nodiscard]] bool hold_state(where at);

  // Tensors that several stages list have one value. False: some rank cannot read its own, as all know.
  [[nodiscard]] bool compare_copies(where at);

  // False: it is given up.
  [[nodiscard]] bool start(std::uint64_t number, where at);

  // Rank 0, once all files are on their media. What comes after the commit is housekeeping, and ends no run.
  void publish(const std::string& text, std::uint64_t step, where at);
  // Of each path once.
  void tell(const checkpoint_contents& about);
  [[nodiscard]] std::optional<file_error> take_left();

  Run* run_;
  const mesh* mesh_;
  checkpoint_options options_;
  checkpoint_folder<Files> folder_;
  std::span<std::byte> ring_, staging_;
  added_state<Files> state_;
  std::vector<update_observation> observed_;  // of the stores
  checkpoint_layout layout_;
  std::vector<residency_hold> held_;  // of state that is being written
  captured_state captured_;           // on rank 0, of the checkpoint that is being written
  std::optional<std::string> id_;     // of this run, in all its checkpoints
  std::uint64_t saving_ = 0;          // the step whose checkpoint is being written, or 0
  std::uint64_t last_started_ = 0;
  std::optional<ballot> heard_;  // the last vote
  std::optional<file_error> problem_;
  std::mutex told_lock_;
  std::set<std::string> told_;                      // paths of what stays
  std::vector<file_error> left_;                    // that is still to be told
  std::optional<checkpoint_writer<Files>> writer_;  // the last: its thread uses the others
};

template <class Run, folders_policy Files>
checkpoints<Run, Files>::checkpoints(Run& run, const mesh& mesh, checkpoint_options options, where at)
    : run_(&run), mesh_(&mesh), options_(std::move(options)), folder_(options_.folder) {
  if (!enabled()) return;
  ring_ = run.template lease<std::byte>(tier::host, checkpoint_writer<Files>::memory_bytes(options_.ring_bytes),
                                        "checkpoint ring", at);
}

template <class Run, folders_policy Files>
checkpoints<Run, Files>::~checkpoints() = default;

template <class Run, folders_policy Files>
template <saved_store Store>
void checkpoints<Run, Files>::add(Store& store, where at) {
  expect_not_open(at);
  if constexpr (requires { store.in_file(); })
    if (enabled() && store.in_file()) lease_staging(at);
  state_.add_values(store);
  if (enabled()) observed_.push_back(store.observe(*this, observer_turn::reads_state, at));
}

template <class Run, folders_policy Files>
template <saved_store Store, saved_optimizer Optimizer>
void checkpoints<Run, Files>::add(Store& store, Optimizer& optimizer, where at) {
  expect_not_open(at);
  if constexpr (requires { optimizer.state_tier(); })
    if (enabled() && optimizer.state_tier() == tier::file) lease_staging(at);
  add(store, at);
  state_.add_optimizer(store, optimizer);
}

template <class Run, folders_policy Files>
template <saved_state State>
void checkpoints<Run, Files>::add(std::string name, State& state, where at) {
  expect_not_open(at);
  state_.add_user(std::move(name), state, at);
}

template <class Run, folders_policy Files>
resumed_run checkpoints<Run, Files>::open(resume_from from, where at) {
  resumed_run out;
  if (!is_rehearsed(mesh_->control())) {
    if (!enabled()) return out;
    expect_same_manifests(at);
    safetensors::file_agreement problems;
    std::uint64_t newest[] = {0};
    problems.attempt([&] {
      if (!speaks()) return;
      folder_.lock(at);
      checkpoint_contents found = folder_.sweep(~std::uint64_t{0}, at);
      out.swept = std::move(found.removed);
      tell(found);
      if (!found.committed.empty()) newest[0] = found.committed.back();
      if (newest[0] != 0 && from == resume_from::nothing)
        throw input_error(options_.folder + " has checkpoints, the newest of step " + std::to_string(newest[0]) +
                              ": resume from it, or name another folder",
                          at);
    });
    problems.agree(control(), at);
    control().broadcast(std::span<std::uint64_t>(newest), 0, at);
    if (newest[0] != 0) {
      out.step = newest[0];
      out.folder = folder_.path_of(newest[0]);
      out.bytes_read =
          load_step(out.folder, from == resume_from::newest ? state_kinds::all : state_kinds::weights, out.step, at);
      run_->engine().continue_after(out.step);
      problems.attempt([&] {
        if (speaks()) tell(folder_.keep(options_.keep, at));  // a run that died may not have come to it
      });
      problems.agree(control(), at);
    }
    while (auto each = take_left()) out.left.push_back(*std::move(each));
    layout_ = checkpoint_layout(control(), mesh_->shape(), declared(), at);
    writer_.emplace(ring_, staging_);
    last_started_ = out.step;
  }
  return out;
}

template <class Run, folders_policy Files>
bool checkpoints<Run, Files>::after(std::uint64_t number, where at) {
  if (!enabled()) return false;
  if (is_rehearsed(control())) {
    held_ = state_.hold(at);
    return false;
  }
  if (!writer_) throw usage_error("a checkpoint before saved.open(...)", at);
  const ballot heard = heard_ ? *std::exchange(heard_, std::nullopt) : vote(at);
  settle(heard, at);
  const bool stops = heard.asked_to_stop > 0;
  const bool due = options_.every > 0 && number % options_.every == 0;
  const bool begun = (!stops && !due) || last_started_ == number || start(number, at);
  if (!stops) return false;
  if (!begun) throw *std::exchange(problem_, std::nullopt);
  close(at);
  if (options_.stop != nullptr) options_.stop->note_followed();
  return true;
}

template <class Run, folders_policy Files>
void checkpoints<Run, Files>::close(where at) {
  if (is_rehearsed(control()) || !writer_) return;
  std::optional<file_error> before = std::exchange(problem_, std::nullopt);
  finish_writing(at);
  writer_->wait_done();
  safetensors::file_agreement problems;
  problems.attempt([&] {
    if (auto late = writer_->take_late_problem()) throw *late;
    if (problem_) throw *problem_;
  });
  problems.agree(control(), at);
  problem_ = std::move(before);
}

template <class Run, folders_policy Files>
std::optional<file_error> checkpoints<Run, Files>::take_problem() {
  if (writer_)
    if (auto late = writer_->take_late_problem()) return late;
  if (problem_) return std::exchange(problem_, std::nullopt);
  return take_left();
}

template <class Run, folders_policy Files>
void checkpoints<Run, Files>::before_update(where) {
  if (writer_) writer_->before_update();
  held_.clear();
}

template <class Run, folders_policy Files>
void checkpoints<Run, Files>::lease_staging(where at) {
  if (staging_.empty())
    staging_ =
        run_->template lease<std::byte>(tier::host, checkpoint_writer<Files>::staging_bytes, "checkpoint staging", at);
}

template <class Run, folders_policy Files>
std::uint64_t checkpoints<Run, Files>::load_step(const std::string& folder, state_kinds kinds,
                                                 std::optional<std::uint64_t> step, where at) {
  std::uint64_t bytes_read = 0;
  if (!is_rehearsed(mesh_->control())) {
    run_->engine().expect_between_steps(at);
    before_update();
    safetensors::file_agreement problems;
    std::string text;
    problems.attempt([&] {
      if (speaks()) text = read_manifest_text<Files>(folder, at);
    });
    problems.agree(control(), at);
    text = safetensors::broadcast_text(control(), std::move(text), 0, at);
    problems.attempt([&] {
      std::vector<residency_hold> here = state_.hold(at);
      manifest content = parse_manifest(text, folder + "/" + std::string(manifest_name), at);
      if (step && content.step != *step)
        throw file_error(folder, 0,
                         "holds the checkpoint of step " + std::to_string(content.step) +
                             ", which its name does not say: give it its own name back, or remove it",
                         at);
      checkpoint_reader<Files> in(folder, std::move(content));
      state_.load(in, kinds, at);
      for (residency_hold& each : here) each.end(at);
      bytes_read = in.bytes_read();
    });
    problems.agree(control(), at);
  }
  return bytes_read;
}

template <class Run, folders_policy Files>
void checkpoints<Run, Files>::expect_same_manifests(where at) const {
  const std::string own = state_.described();
  rank_comparison compared;
  const std::uint64_t hash[] = {content_hash().add_text(own).value()};
  if (!compared.differ(control(), hash, at)) return;
  const std::string first = safetensors::broadcast_text(control(), own, 0, at);
  std::uint64_t other[] = {own == first ? ~std::uint64_t{0} : static_cast<std::uint64_t>(control().rank())};
  control().all_reduce(std::span<std::uint64_t>(other), minimum, at);
  const auto odd = static_cast<int>(other[0]);
  throw usage_error("ranks have added other things to a checkpoint, which has rank 0's for all: rank 0 has " + first +
                        "; rank " + std::to_string(odd) + " has " +
                        safetensors::broadcast_text(control(), own, odd, at),
                    at);
}

template <class Run, folders_policy Files>
declared_state checkpoints<Run, Files>::declared() {
  declared_state out;
  state_.declare(out);
  return out;
}

template <class Run, folders_policy Files>
ballot checkpoints<Run, Files>::own_ballot() const {
  ballot out;
  if (!enabled()) return out;
  if (saving_ != 0) {
    out.unwritten = writer_->done() ? 0 : 1;
    out.unwritable = writer_->problem() ? 1 : 0;
  }
  out.asked_to_stop = options_.stop != nullptr && options_.stop->asked() ? 1 : 0;
  return out;
}

template <class Run, folders_policy Files>
ballot checkpoints<Run, Files>::vote(where at) const {
  const ballot own = own_ballot();
  std::uint64_t sums[] = {own.unwritten, own.unwritable, own.asked_to_stop};
  control().all_reduce(std::span<std::uint64_t>(sums), sum, at);
  ballot all;
  all.unwritten = sums[0];
  all.unwritable = sums[1];
  all.asked_to_stop = sums[2];
  return all;
}

template <class Run, folders_policy Files>
void checkpoints<Run, Files>::settle(const ballot& all, where at) {
  if (saving_ == 0 || all.unwritten > 0) return;
  if (all.unwritable > 0) return give_up(at);
  const std::vector<std::uint32_t> checksums = layout_.gather_checksums(control(), writer_->files(), at);
  if (speaks()) {
    manifest content = layout_.content(*id_, saving_, checksums);
    content.optimizers = std::move(captured_.optimizers);
    content.states = std::move(captured_.states);
    writer_->then([this, text = manifest_text::of(content), step = saving_, at] { publish(text, step, at); });
  }
  saving_ = 0;
  held_.clear();
}

template <class Run, folders_policy Files>
void checkpoints<Run, Files>::give_up(where at) {
  std::vector<std::string> names;
  for (const file_to_write& each : writer_->files()) names.push_back(each.path.substr(each.path.rfind('/') + 1));
  checkpoint_folder<Files>::discard(folder_.path_of(saving_), names);
  safetensors::file_agreement problems;
  problems.attempt([&] {
    if (const auto problem = writer_->problem()) throw *problem;
  });
  try {
    problems.agree(control(), at);
  } catch (const file_error& problem) {
    problem_ = problem;
  }
  if (speaks()) static_cast<void>(Files::remove_folder(folder_.path_of(saving_).c_str()));
  saving_ = 0;
  held_.clear();
}

template <class Run, folders_policy Files>
void checkpoints<Run, Files>::finish_writing(where at) {
  if (saving_ == 0) return;
  writer_->wait_done();
  settle(vote(at), at);
}

template <class Run, folders_policy Files>
bool checkpoints<Run, Files>::hold_state(where at) {
  if (!state_.away()) return true;
  safetensors::file_agreement problems;
  problems.attempt([&] { held_ = state_.hold(at); });
  try {
    problems.agree(control(), at);
    return true;
  } catch (const file_error& problem) {
    problem_ = problem;
  }
  held_.clear();
  return false;
}

template <class Run, folders_policy Files>
bool checkpoints<Run, Files>::compare_copies(where at) {
  if (!layout_.has_copies()) return true;
  safetensors::file_agreement problems;
  std::vector<std::uint64_t> sums;
  problems.attempt([&] {
    file_staging staging = staging_.empty() ? file_staging() : file_staging(staging_);
    sums = layout_.sums_of_copies(ring_.first(copied_at_once), staging, at);
  });
  try {
    problems.agree(control(), at);
  } catch (const file_error& problem) {
    problem_ = problem;
    held_.clear();
    return false;
  }
  control().all_reduce(std::span<std::uint64_t>(sums), sum, at);
  try {
    layout_.expect_equal_copies(sums, at);
  } catch (...) {
    held_.clear();
    throw;
  }
  return true;
}

template <class Run, folders_policy Files>
bool checkpoints<Run, Files>::start(std::uint64_t number, where at) {
  finish_writing(at);
  run_->engine().synchronize(at);  // the last update
  expect_same_manifests(at);
  if (!hold_state(at)) return false;
  if (!compare_copies(at)) return false;
  if (!id_) id_ = safetensors::broadcast_text(control(), speaks() ? random_checkpoint_id(at) : "", 0, at);
  if (speaks()) captured_ = state_.capture(at);
  saving_ = last_started_ = number;
  const std::string folder = folder_.path_of(number);
  writer_->start(layout_.files_of_this_rank(folder, *id_, number), folder, at);
  return true;
}

template <class Run, folders_policy Files>
void checkpoints<Run, Files>::publish(const std::string& text, std::uint64_t step, where at) {
  folder_.commit(step, text, at);
  checkpoint_contents failed;
  try {
    tell(folder_.keep(options_.keep, at));
    tell(folder_.sweep(step, at));  // what was given up; others may write a later one by now
  } catch (const file_error& problem) {
    failed.left.push_back(problem);
  }
  tell(failed);
}

template <class Run, folders_policy Files>
void checkpoints<Run, Files>::tell(const checkpoint_contents& about) {
  const std::lock_guard held(told_lock_);
  for (const file_error& each : about.left)
    if (told_.insert(each.path()).second) left_.push_back(each);
}

template <class Run, folders_policy Files>
std::optional<file_error> checkpoints<Run, Files>::take_left() {
  const std::lock_guard held(told_lock_);
  if (left_.empty()) return std::nullopt;
  file_error out = std::move(left_.front());
  left_.erase(left_.begin());
  return out;
}

template <class Run>
checkpoints(Run&, const mesh&, checkpoint_options) -> checkpoints<Run>;

}  // namespace belay::inline BELAY_ABI
