// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A file of events as TensorBoard reads it: scalars and texts of steps. Protocol buffers are not needed: an event is a
// few fields, and a record is its length and its bytes, each with a masked CRC-32C (TensorFlow's record format).
//
//   belay::event_file events("runs/first");
//   events.scalar("loss", 2.5).scalar("device/peak", 1048576).write(20);
//   events.text("sample", "To be, or").write(20);
#pragma once

#include <unistd.h>

#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <system_error>

#include "belay/core/config.hpp"
#include "belay/core/crc32c.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"
#include "belay/report/output.hpp"

namespace belay::inline BELAY_ABI {

/// A file of its own in a folder that runs of one name share: what is resumed adds a file. An event has one step and
/// any number of values. Used by one thread at a time. Up to `reserved_bytes` an event, writing allocates nothing.
class event_file {
 public:
  /// Bytes that are leased for a record.
  static constexpr std::size_t reserved_bytes = std::size_t{1} << 16U;

  /// Makes the folder where it is missing, and a file in it that none has. Throws file_error where that cannot be.
  explicit event_file(const std::string& folder, where at = where::current()) : file_(new_path(folder, at), at) {
    values_.reserve(reserved_bytes);
    event_.reserve(reserved_bytes);
    record_.reserve(reserved_bytes);
    begin_event(0);
    text_field(event_, 3, "brain.Event:2");
    write_event(at);
  }

  /// Adds a value to the event. A tag is a path of names; a value that is no number is one that TensorBoard leaves out.
  event_file& scalar(std::string_view tag, double value) {
    const std::size_t bytes = text_bytes(tag) + 1 + sizeof(float);
    number_field(values_, 1, length_delimited), varint(values_, bytes);
    text_field(values_, 1, tag);
    number_field(values_, 2, fixed32);
    little_endian(values_, std::bit_cast<std::uint32_t>(static_cast<float>(value)));
    return *this;
  }

  /// Adds a text, which is shown as Markdown.
  event_file& text(std::string_view tag, std::string_view markdown) {
    // One string in a tensor of one dimension, and whose it is: the plug-in of texts.
    constexpr std::string_view metadata = "\x0a\x06\x0a\x04text\x20\x02";
    constexpr std::string_view type_and_shape = "\x08\x07\x12\x04\x12\x02\x08\x01";
    const std::size_t tensor = type_and_shape.size() + text_bytes(markdown);
    const std::size_t bytes = text_bytes(tag) + text_bytes(metadata) + 1 + varint_bytes(tensor) + tensor;
    number_field(values_, 1, length_delimited), varint(values_, bytes);
    text_field(values_, 1, tag);
    number_field(values_, 8, length_delimited), varint(values_, tensor);
    values_ += type_and_shape;
    text_field(values_, 8, markdown);
    text_field(values_, 9, metadata);
    return *this;
  }

  /// Writes what was added as an event of `step`, with one system call; nothing where nothing was. Throws file_error;
  /// what was added is gone then, too.
  void write(std::uint64_t step, where at = where::current()) {
    if (values_.empty()) return;
    begin_event(step);
    text_field(event_, 5, values_);
    values_.clear();
    write_event(at);
  }

  /// A run goes on with `step`: TensorBoard leaves out what earlier files of the folder have of it and of later ones.
  void resume_at(std::uint64_t step, where at = where::current()) {
    begin_event(step);
    constexpr std::string_view started = "\x08\x01";
    text_field(event_, 7, started);
    write_event(at);
  }

  /// The file's path.
  [[nodiscard]] const std::string& path() const noexcept { return file_.path(); }

 private:
  // What a field's number is followed by.
  static constexpr std::uint32_t number = 0, fixed64 = 1, length_delimited = 2, fixed32 = 5;

  static void varint(std::string& to, std::uint64_t value) {
    for (; value >= 0x80U; value >>= 7U) to += static_cast<char>(static_cast<unsigned char>(value) | 0x80U);
    to += static_cast<char>(value);
  }
  [[nodiscard]] static std::size_t varint_bytes(std::uint64_t value) noexcept {
    std::size_t out = 1;
    for (; value >= 0x80U; value >>= 7U) ++out;
    return out;
  }
  static void number_field(std::string& to, std::uint32_t field, std::uint32_t kind) { varint(to, field << 3U | kind); }
  static void text_field(std::string& to, std::uint32_t field, std::string_view text) {
    number_field(to, field, length_delimited);
    varint(to, text.size());
    to += text;
  }
  // Of a field whose number is below 16.
  [[nodiscard]] static std::size_t text_bytes(std::string_view text) noexcept {
    return 1 + varint_bytes(text.size()) + text.size();
  }
  template <class Word>
  static void little_endian(std::string& to, Word value) {
    for (std::size_t i = 0; i < sizeof(Word); ++i)
      to += static_cast<char>(static_cast<unsigned char>(value >> (8 * i)));
  }

  void begin_event(std::uint64_t step) {
    const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
    event_.clear();
    number_field(event_, 1, fixed64), little_endian(event_, std::bit_cast<std::uint64_t>(now.count()));
    number_field(event_, 2, number), varint(event_, step);
  }
  void write_event(where at) {
    record_.clear();
    little_endian(record_, std::uint64_t{event_.size()});
    little_endian(record_, masked(record_));
    record_ += event_;
    little_endian(record_, masked(event_));
    file_.write(record_, at);
  }
  // A checksum of bytes that hold checksums themselves would be weak.
  [[nodiscard]] static std::uint32_t masked(std::string_view bytes) noexcept {
    const std::uint32_t plain = crc32c().add(std::as_bytes(std::span(bytes))).value();
    return (plain >> 15U | plain << 17U) + 0xa282ead8U;
  }

  [[nodiscard]] static std::string new_path(const std::string& folder, where at) {
    std::error_code wrong;
    std::filesystem::create_directories(folder, wrong);
    if (wrong)
      throw file_error(folder, 0, "cannot be made a folder of events: " + wrong.message() + "; name another", at);
    char host[65] = {};  // Linux has names of at most 64 bytes
    if (::gethostname(host, 64) != 0 || *host == '\0') host[0] = 'h', host[1] = '\0';
    for (char* c = host; *c != '\0'; ++c)
      if (*c == '/') *c = '-';
    const auto seconds =
        std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
    const std::string begin = folder + "/events.out.tfevents." + std::to_string(seconds) + "." + host + "." +
                              std::to_string(::getpid()) + ".";
    int n = 0;
    while (std::filesystem::exists(begin + std::to_string(n), wrong)) ++n;
    if (wrong) throw file_error(begin + std::to_string(n), 0, "cannot be examined: " + wrong.message(), at);
    return begin + std::to_string(n);
  }

  output file_;
  std::string values_;
  std::string event_;
  std::string record_;
};

}  // namespace belay::inline BELAY_ABI
