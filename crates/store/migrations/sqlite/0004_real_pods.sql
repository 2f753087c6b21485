-- Names of pods and logs were made up, although no launcher has either. An empty text stands for no value.
UPDATE runner_jobs SET pod_name = '', log_path = '';
