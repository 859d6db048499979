// Metrics of one process, in Prometheus' text format.
//
// MetricsPage gathers what several parts register: counters and histograms that they own, and
// callbacks that read a state at scrape time. Families of one name (of two workers in one process)
// are joined on the page. Thread-safe; values are read and written without a common lock.
#ifndef QUIRE_COMMON_METRICS_METRICS_H_
#define QUIRE_COMMON_METRICS_METRICS_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/clock.h"

namespace prometheus {
class Counter;
class Gauge;
class Histogram;
}  // namespace prometheus

namespace quire {

using MetricLabels = std::map<std::string, std::string>;

// One value at scrape time.
struct MetricSample {
  enum class Kind { kCounter, kGauge };
  Kind kind = Kind::kGauge;
  std::string name;
  std::string help;
  MetricLabels labels;
  double value = 0;
};

class MetricsPage {
 public:
  MetricsPage();
  ~MetricsPage();
  MetricsPage(const MetricsPage&) = delete;

  // The objects live as long as the page. The same name and labels give the same object.
  prometheus::Counter& AddCounter(const std::string& name, const std::string& help,
                                  const MetricLabels& labels = {});
  prometheus::Gauge& AddGauge(const std::string& name, const std::string& help,
                              const MetricLabels& labels = {});
  prometheus::Histogram& AddHistogram(const std::string& name, const std::string& help,
                                      const std::vector<double>& bounds,
                                      const MetricLabels& labels = {});

  // `read` is called at each scrape, from the scraping thread, until the returned handle dies.
  using Reader = std::function<void(std::vector<MetricSample>*)>;
  [[nodiscard]] std::shared_ptr<void> AddReader(Reader read);

  std::string Text() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Seconds from 1 ms to about 2 minutes, for times of requests.
const std::vector<double>& LatencyBounds();
// Seconds from 1 µs to 1 s, for decisions.
const std::vector<double>& ShortLatencyBounds();

// The ratio of two growing counts over the last `window`: hits / asked.
//
// Owner: whoever calls Update; external locking.
class SlidingRatio {
 public:
  explicit SlidingRatio(int64_t window_us, int64_t grain_us = 5'000'000)
      : window_us_(window_us), grain_us_(grain_us) {}

  void Update(TimeUs now, int64_t hits, int64_t asked);
  double ratio() const;   // NaN if nothing was asked
  int64_t asked() const;  // in the window

 private:
  struct Point {
    TimeUs time_us;
    int64_t hits, asked;
  };
  const int64_t window_us_, grain_us_;
  std::deque<Point> points_{
      {0, 0, 0}};  // at most window / grain + 2; the front is the window's begin
  Point now_{0, 0, 0};
};

}  // namespace quire

#endif  // QUIRE_COMMON_METRICS_METRICS_H_
