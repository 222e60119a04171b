// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A file of events as TensorBoard reads it: scalars and texts of steps. Protocol buffers are not needed: an event is a
// few fields, and a record is its length and its bytes, each with a masked CRC-32C (TensorFlow's record format).
//
//   belay::event_file events("runs/first");
//   events.scalar("loss", 2.5).scalar("device/peak", 1048576).write(20);
//   events.text("sample", "To be, or").write(20);
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "belay/core/config.hpp"
#include "belay/core/finite.hpp"
#include "belay/core/where.hpp"
#include "belay/report/output.hpp"
#include "belay/report/step_line.hpp"

namespace belay::inline BELAY_ABI {

/// A file of its own in a folder that runs of one name share: what is resumed adds a file. An event has one step and
/// any number of values. Used by one thread at a time. Up to `reserved_bytes` an event, writing allocates nothing.
class event_file {
 public:
  /// Bytes that are leased for a record.
  static constexpr std::size_t reserved_bytes = std::size_t{1} << 16U;

  /// Makes the folder where it is missing, and a file in it that none has. Throws file_error where that cannot be.
  explicit event_file(const std::string& folder, where at = where::current());

  /// Adds a value to the event. A tag is a path of names; a value that is no number is one that TensorBoard leaves out.
  event_file& scalar(std::string_view tag, double value);

  /// Adds a text, which is shown as Markdown.
  event_file& text(std::string_view tag, std::string_view markdown);

  /// Writes what was added as an event of `step`, with one system call; nothing where nothing was. Throws file_error;
  /// what was added is gone then, too.
  void write(std::uint64_t step, where at = where::current());

  /// A run goes on with `step`: TensorBoard leaves out what earlier files of the folder have of it and of later ones.
  void resume_at(std::uint64_t step, where at = where::current());

  /// The file's path.
  [[nodiscard]] const std::string& path() const noexcept { return file_.path(); }

 private:
  // What a field's number is followed by.
  static constexpr std::uint32_t number = 0, fixed64 = 1, length_delimited = 2, fixed32 = 5;

  static void varint(std::string& to, std::uint64_t value);
  [[nodiscard]] static std::size_t varint_bytes(std::uint64_t value) noexcept;
  static void number_field(std::string& to, std::uint32_t field, std::uint32_t kind) { varint(to, field << 3U | kind); }
  static void text_field(std::string& to, std::uint32_t field, std::string_view text);
  // Of a field whose number is below 16.
  [[nodiscard]] static std::size_t text_bytes(std::string_view text) noexcept;
  template <class Word>
  static void little_endian(std::string& to, Word value) {
    for (std::size_t i = 0; i < sizeof(Word); ++i)
      to += static_cast<char>(static_cast<unsigned char>(value >> (8 * i)));
  }

  void begin_event(std::uint64_t step);
  void write_event(where at);
  // A checksum of bytes that hold checksums themselves would be weak.
  [[nodiscard]] static std::uint32_t masked(std::string_view bytes) noexcept;

  [[nodiscard]] static std::string new_path(const std::string& folder, where at);

  output file_;
  std::string values_;
  std::string event_;
  std::string record_;
};

// The numbers of a step as scalars of an event: their tags are the names of the JSON line (report/step_line.hpp), those
// inside an object as paths.

/// Adds them to the event that `events` collects. Bytes are those of the rank with most, in the tiers that are used. Of
/// the experts' tokens it is the imbalance, `expert_imbalance`: the busiest expert of any layer over the mean of its
/// layer. Allocates nothing.
inline void add_scalars(event_file& events, const step_report& report) {
  const auto scalar = [&events](std::string_view tag, auto value) { events.scalar(tag, static_cast<double>(value)); };
  scalar("loss", report.loss), scalar("aux_loss", report.aux_loss), scalar("grad_norm", report.grad_norm);
  scalar("tokens", report.tokens), scalar("tokens_per_s", report.tokens_per_s);
  const auto largest = [](std::span<const std::uint64_t> ranks) {
    return ranks.empty() ? 0 : *std::max_element(ranks.begin(), ranks.end());
  };
  struct {
    const tier_report& bytes;
    std::string_view live, peak, planned;
  } const tiers[] = {{report.device, "live_bytes/device", "peak_bytes/device", "planned_bytes/device"},
                     {report.pinned, "live_bytes/pinned", "peak_bytes/pinned", "planned_bytes/pinned"},
                     {report.host, "live_bytes/host", "peak_bytes/host", "planned_bytes/host"},
                     {report.file, "live_bytes/file", "peak_bytes/file", "planned_bytes/file"}};
  for (const auto& tier : tiers) {
    if (!tier.bytes.used()) continue;
    scalar(tier.live, largest(tier.bytes.live)), scalar(tier.peak, largest(tier.bytes.peak));
    scalar(tier.planned, largest(tier.bytes.planned));
  }
  scalar("allocations/device", report.allocations.device), scalar("allocations/host", report.allocations.host);
  scalar("allocations/heap", report.allocations.heap), scalar("open_obligations", report.open_obligations);
  if (!is_nan(report.bubble)) scalar("bubble", report.bubble), scalar("bubble_predicted", report.bubble_predicted);
  scalar("plan_misses", report.plan_misses), scalar("prefetch_hits", report.prefetch_hits);
  scalar("gathered_bytes_peak", report.gathered_bytes_peak);
  scalar("offloaded_bytes/pinned", report.offloaded_pinned), scalar("offloaded_bytes/host", report.offloaded_host);
  scalar("offloaded_bytes/file", report.offloaded_file), scalar("hidden_copy_share", report.hidden_copy_share);
  scalar("expert_imbalance", step_line::imbalance(report.expert_tokens));
  scalar("replayed", report.replayed ? 1 : 0);
}

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/report/event_file.ipp"  // IWYU pragma: export
#endif
